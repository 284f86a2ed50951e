package dataplane

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkConnection measures whole connections of ten packets, each in a batch of its own as a device without a backlog
// hands them over: handshake, request, answer, and end. The table is as large as it would be in earnest, and new, so that the
// first touch of its memory is part of the cost; what it has come to when all was touched is told apart.
func BenchmarkConnection(b *testing.B) {
	for _, sessions := range []int{1 << 16, 1 << 20} {
		for _, ready := range []bool{false, true} {
			name := fmt.Sprintf("%d/as-used", sessions)
			if ready {
				name = fmt.Sprintf("%d/ready", sessions)
			}
			b.Run(name, func(b *testing.B) {
				fam := families2()[0]
				p := newPlane(b, fam, func(c *Config, _ *Service) { c.MaxSessions = sessions })
				if ready { // as Run does
					p.sessions().Prefault()
					p.slab.prepare()
				}
				client, vip := ap(fam.client, 1), ap(fam.vip, 80)
				bufs, sizes := [][]byte{make([]byte, ReadOffset+2048)}, []int{0}
				flags := []struct {
					back  bool
					flags string
					seq   uint32
					ack   uint32
					data  string
				}{
					{false, "S", 100, 0, ""}, {true, "SA", 500, 101, ""}, {false, "A", 101, 501, ""}, {false, "PA", 101, 501, "GET /"},
					{true, "A", 501, 106, ""}, {true, "PA", 501, 106, "200 OK"}, {false, "A", 106, 507, ""}, {true, "FA", 507, 106, ""},
					{false, "FA", 106, 508, ""}, {true, "A", 508, 107, ""},
				}
				packets := make([][]byte, len(flags))
				for i, f := range flags {
					if f.back {
						packets[i] = tcp(ap(fam.n1, 8080), client, f.flags, f.seq, f.ack, f.data)
					} else {
						packets[i] = tcp(client, vip, f.flags, f.seq, f.ack, f.data)
					}
				}
				n, node := uint32(0), [4]byte{}
				connection := func() {
					n++
					for i, f := range flags {
						x := bufs[0][ReadOffset:]
						sizes[0] = copy(x, packets[i])
						addr, port := x[12:16], x[20:22]
						if f.back {
							addr, port = x[16:20], x[22:24]
							copy(x[12:16], node[:])
						}
						binary.BigEndian.PutUint32(addr, 0x0b000000+n>>14)
						binary.BigEndian.PutUint16(port, 1024+uint16(n&(1<<14-1)))
						out := p.Process(time.Now(), bufs, sizes, ReadOffset, nil)
						if len(out) != 1 {
							b.Fatal(i, n, p.drops())
						}
						if i == 0 {
							node = [4]byte(out[0][Headroom+16:])
						}
					}
				}
				var rounds []float64
				const round = 256
				for b.Loop() {
					start := cpuTime()
					for range round {
						connection()
					}
					rounds = append(rounds, float64(cpuTime()-start)/round)
					if len(rounds)%16 == 0 {
						p.Step(time.Now())
					}
					select {
					case <-p.slab.low:
						p.slab.prepare()
					default:
					}
				}
				require.NotEmpty(b, rounds)
				first := 0.0
				for _, r := range rounds[:min(len(rounds), 20)] {
					first += r / float64(min(len(rounds), 20))
				}
				slices.Sort(rounds)
				b.ReportMetric(first, "first-cpu-ns/conn")
				b.ReportMetric(rounds[len(rounds)/2], "cpu-ns/conn")
				b.ReportMetric(rounds[0], "best-cpu-ns/conn")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
