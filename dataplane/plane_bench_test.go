package dataplane

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// flows are live sessions whose packets can be made touching little memory of their own.
type flows struct {
	p         *Plane
	n         uint32
	v6        bool
	templates [2][]byte // towards the node, and back
	node      []uint8   // by flow: the last byte of the node's address; nil if nodes answer past the balancer
	batch
}

// batch is room for packets.
type batch struct {
	bufs  [][]byte
	sizes []int
}

func newBatches(n int) []batch {
	all := make([]batch, n)
	for i := range all {
		all[i] = batch{make([][]byte, chunk), make([]int, chunk)}
		for j := range all[i].bufs {
			all[i].bufs[j] = make([]byte, ReadOffset+2048)
		}
	}
	return all
}

// newFlows opens n sessions of TCP or UDP.
func newFlows(t testing.TB, n int, proto string, v6 bool, change ...func(*Config, *Service)) *flows {
	fam := families2()[0]
	if v6 {
		fam = families2()[1]
	}
	ids := new(steering.IDs)
	var nodes []steering.Node
	for i := range 100 {
		a := fam.n1.As16()
		a[15] = byte(i + 1)
		nodes = append(nodes, steering.Node{Name: fmt.Sprint("n", i), Addr: netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), 8080)})
	}
	svc := &Service{Name: "web", Pool: mustPool(t, ids, steering.Maglev, nodes...), Mode: 2}
	cfg := &Config{MaxSessions: n}
	for _, f := range change {
		if f != nil {
			f(cfg, svc)
		}
	}
	cfg.Policies = table(t, rule("r", fam.vip.String()+" "+proto+"/80", svc))
	p, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	f := &flows{p: p, n: uint32(n), v6: v6, batch: newBatches(1)[0]}
	if !svc.Forward.direct() {
		f.node = make([]uint8, n)
	}
	client, vip, node := ap(fam.client, 1), ap(fam.vip, 80), nodes[0].Addr
	payload := "123456789012345678"
	var first []byte
	if proto == "tcp" {
		first = tcp(client, vip, "S", 1, 0, "")
		f.templates = [2][]byte{tcp(client, vip, "A", 2, 2, payload[:6]), tcp(node, client, "A", 2, 2, payload[:6])}
	} else {
		first = udp(client, vip, payload)
		f.templates = [2][]byte{first, udp(node, client, payload)}
	}
	for i := uint32(0); i < f.n; i += chunk {
		m := 0
		for ; m < chunk && i+uint32(m) < f.n; m++ {
			f.put(m, first, toNode, i+uint32(m))
		}
		out := f.process(m)
		require.Len(t, out, m)
		for j, o := range out {
			if f.node == nil {
				break
			}
			fl, _ := parseFlow(o[Headroom:])
			a := fl.Dst.Addr().As16()
			f.node[i+uint32(j)] = a[15]
			if proto == "tcp" {
				b := tcp(fl.Dst, fl.Src, "SA", 1, 2, "")
				copy(f.bufs[j][ReadOffset:], b)
				f.sizes[j] = len(b)
			}
		}
		if proto != "tcp" {
			continue
		}
		if f.node != nil {
			require.Len(t, f.process(m), m)
		}
		for j := range m {
			f.put(j, f.templates[0], toNode, i+uint32(j))
		}
		require.Len(t, f.process(m), m)
	}
	require.Equal(t, n, p.Stats().Sessions)
	return f
}

func (f *flows) process(n int) [][]byte {
	return f.p.Process(time.Now(), f.bufs[:n], f.sizes[:n], ReadOffset, nil)
}

// put writes a packet of flow i into buffer j. Checksums are left wrong: nobody looks at them.
func (f *flows) put(j int, template []byte, dir, i uint32) {
	b := f.bufs[j][ReadOffset:]
	copy(b, template)
	f.sizes[j] = len(template)
	l4, size := 20, 4
	client, node := b[12:], b[15:]
	if f.v6 {
		l4, size = 40, 16
		client, node = b[8+12:], b[8+15:]
	}
	at := 0
	if dir == toClient {
		node[0] = f.node[i]
		client, at = client[size:], 2
	}
	binary.BigEndian.PutUint32(client, 0x0b000000+i>>8)
	binary.BigEndian.PutUint16(b[l4+at:], 1024+uint16(i&0xff))
}

// BenchmarkProcess measures packets of sessions that are met at random: what a packet costs that was made
// before.
func BenchmarkProcess(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		for _, k := range []struct {
			name, proto string
			v6          bool
			both        bool
			change      func(*Config, *Service)
		}{
			{name: "udp/IPv4", proto: "udp"},
			{name: "udp/IPv6", proto: "udp", v6: true},
			{name: "tcp/IPv4", proto: "tcp"},
			{name: "tcp/IPv6", proto: "tcp", v6: true},
			{name: "both-ways/udp/IPv4", proto: "udp", both: true},
			{name: "both-ways/tcp/IPv4", proto: "tcp", both: true},
			{name: "tunnel/udp/IPv4", proto: "udp", change: tunnelled4},
			{name: "tunnel/tcp/IPv4", proto: "tcp", change: tunnelled4},
		} {
			b.Run(fmt.Sprintf("%s/%d", k.name, n), func(b *testing.B) {
				f := newFlows(b, n, k.proto, k.v6, k.change)
				r := rand.New(rand.NewPCG(1, 2))
				both := uint32(0)
				if k.both {
					both = 1
				}
				ahead := newBatches(benchRound)
				fill := func() {
					for i := range ahead {
						f.batch = ahead[i]
						for j := range chunk {
							x := r.Uint64()
							i := uint32(x >> 32 * uint64(f.n) >> 32)
							dir := uint32(x) & 1 & both
							f.put(j, f.templates[dir], dir, i)
						}
					}
				}
				process := func() {
					for i := range ahead {
						f.batch = ahead[i]
						if out := f.process(chunk); len(out) != chunk {
							b.Fatal(len(out), maps.Collect(f.p.Drops()))
						}
					}
				}
				for range n / 8 / benchRound {
					fill()
					process() // as it is after a while, with every session met some seconds ago
				}
				// Others use the machine, too: rounds are short, and the best of a hundred says what the work costs.
				var cpu []float64
				b.ReportAllocs()
				for b.Loop() {
					for range 32 {
						fill()
						start := cpuTime()
						process()
						cpu = append(cpu, float64(cpuTime()-start)/benchRound/chunk)
					}
				}
				slices.Sort(cpu)
				b.ReportMetric(cpu[len(cpu)/2], "cpu-ns/packet")
				b.ReportMetric(cpu[len(cpu)/100], "best-cpu-ns/packet")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkMemory measures what BenchmarkProcess cannot be faster than: reading lines of 256 MB at random, each where the
// last one said, or 32 at a time.
func BenchmarkMemory(b *testing.B) {
	s, err := newSlab(1<<21, 1<<21)
	require.NoError(b, err)
	defer func() { s.forget() }() // and keep s until then
	recs := s.recs
	for i := range recs {
		recs[i].nodeNo = (uint32(i)*1664525 + 1013904223) % (1 << 21) // a cycle through all of them
	}
	at, sum := uint32(0), uint32(0)
	b.Run("chase", func(b *testing.B) {
		for b.Loop() {
			at = recs[at].nodeNo
		}
	})
	b.Run("batch", func(b *testing.B) {
		for b.Loop() {
			at, sum = at+chunk, 0
			for i := range uint32(chunk) {
				sum += recs[(at+i)*2654435761>>11].nodeNo
			}
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/chunk, "ns/line")
	})
}

// benchRound is how many batches are made ahead and then measured, as a device has them: no packet is read right after it was
// written.
const benchRound = 16

func tunnelled4(c *Config, s *Service) {
	s.Forward, c.Addrs = Tunnelled, []netip.Addr{families2()[0].elsewhere}
}

func TestProcessAllocatesNothing(t *testing.T) {
	for _, proto := range []string{"udp", "tcp"} {
		for _, v6 := range []bool{false, true} {
			f := newFlows(t, 1000, proto, v6)
			i := uint32(0)
			require.Zero(t, testing.AllocsPerRun(50, func() {
				for j := range chunk {
					i = (i + 7) % f.n
					f.put(j, f.templates[0], toNode, i)
				}
				f.process(chunk)
			}))
		}
	}
}

// TestNewSessionAllocatesNothing opens and closes sessions.
func TestNewSessionAllocatesNothing(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	b := tcp(ap(fam.client, 1), ap(fam.vip, 80), "S", 1, 0, "")
	rst := tcp(ap(fam.client, 1), ap(fam.vip, 81), "S", 1, 0, "")
	mid := tcp(ap(fam.client2, 1), ap(fam.vip, 80), "A", 1, 5, "")
	bufs, sizes := [][]byte{make([]byte, ReadOffset+200)}, []int{0}
	port := uint16(1)
	run := func(b []byte) {
		sizes[0] = copy(bufs[0][ReadOffset:], b)
		p.Process(p.now, bufs, sizes, ReadOffset, nil)
	}
	require.Less(t, testing.AllocsPerRun(200, func() {
		port++
		binary.BigEndian.PutUint16(b[20:], port)
		run(b)
		run(rst)
		run(mid)
	}), 1.0)
	require.EqualValues(t, 0, p.drops()[TableFull])
}

// TestRecordLines keeps what every packet needs of a record in two cache lines.
func TestRecordLines(t *testing.T) {
	var r record
	require.EqualValues(t, 3*64, unsafe.Sizeof(r))
	require.EqualValues(t, 64, unsafe.Offsetof(r.entries))
	require.EqualValues(t, 128, unsafe.Offsetof(r.local))
}
