package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// flows are live sessions whose packets can be made without touching memory of their own.
type flows struct {
	p         *Plane
	n         uint32
	templates [2][]byte // towards the node, and back
	bufs      [][]byte
	sizes     []int
}

// newFlows opens n sessions of TCP or UDP.
func newFlows(t testing.TB, n int, proto string, v6 bool) *flows {
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
	p, err := New(&Config{MaxSessions: n, Policies: table(t, rule("r", fam.vip.String()+" "+proto+"/80", svc))})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	f := &flows{p: p, n: uint32(n), bufs: make([][]byte, chunk), sizes: make([]int, chunk)}
	for i := range f.bufs {
		f.bufs[i] = make([]byte, ReadOffset+2048)
	}
	client, vip := ap(fam.client, 1), ap(fam.vip, 80)
	payload := "12345678901234567890123"[:18]
	var first []byte
	if proto == "tcp" {
		first = tcp(client, vip, "S", 1, 0, "")
		f.templates[0] = tcp(client, vip, "A", 2, 2, payload[:6])
	} else {
		first = udp(client, vip, payload)
		f.templates[0] = udp(client, vip, payload)
	}
	for i := uint32(0); i < f.n; i += chunk {
		m := 0
		for ; m < chunk && i+uint32(m) < f.n; m++ {
			f.put(m, first, i+uint32(m))
		}
		out := p.Process(time.Now(), f.bufs[:m], f.sizes[:m], ReadOffset, nil)
		require.Len(t, out, m)
		if proto != "tcp" {
			continue
		}
		for j, o := range out {
			fl, _ := parseFlow(o[Headroom:])
			b := tcp(fl.Dst, fl.Src, "SA", 1, 2, "")
			copy(f.bufs[j][ReadOffset:], b)
			f.sizes[j] = len(b)
		}
		require.Len(t, p.Process(time.Now(), f.bufs[:m], f.sizes[:m], ReadOffset, nil), m)
		for j := range m {
			f.put(j, f.templates[0], i+uint32(j))
		}
		require.Len(t, p.Process(time.Now(), f.bufs[:m], f.sizes[:m], ReadOffset, nil), m)
	}
	require.Equal(t, n, p.Stats().Sessions)
	return f
}

// put writes the packet of flow i into buffer j.
func (f *flows) put(j int, template []byte, i uint32) {
	b := f.bufs[j][ReadOffset:]
	copy(b, template)
	f.sizes[j] = len(template)
	src, l4 := b[12:16], 20
	if b[0]>>4 == 6 {
		src, l4 = b[20:24], 40
	}
	binary.BigEndian.PutUint32(src, 0x0b000000+i>>8)
	binary.BigEndian.PutUint16(b[l4:], 1024+uint16(i&0xff))
}

func BenchmarkProcess(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		for _, proto := range []string{"udp", "tcp"} {
			for _, v6 := range []bool{false, true} {
				name := fmt.Sprintf("%s/%d", proto, n)
				if v6 {
					name += "/IPv6"
				}
				b.Run(name, func(b *testing.B) {
					f := newFlows(b, n, proto, v6)
					r := rand.New(rand.NewPCG(1, 2))
					b.ReportAllocs()
					b.ResetTimer()
					start := cpuTime()
					for i := 0; i < max(b.N, 1<<16); i += chunk {
						for j := range chunk {
							f.put(j, f.templates[0], uint32(r.Uint64N(uint64(f.n))))
						}
						if out := f.p.Process(time.Now(), f.bufs, f.sizes, ReadOffset, nil); len(out) != chunk {
							b.Fatal(len(out))
						}
					}
					b.ReportMetric(float64(cpuTime()-start)/float64(max(b.N, 1<<16)), "cpu-ns/op")
				})
			}
		}
	}
}

func TestProcessAllocatesNothing(t *testing.T) {
	for _, proto := range []string{"udp", "tcp"} {
		for _, v6 := range []bool{false, true} {
			f := newFlows(t, 1000, proto, v6)
			i := uint32(0)
			require.Zero(t, testing.AllocsPerRun(50, func() {
				for j := range chunk {
					i = (i + 7) % f.n
					f.put(j, f.templates[0], i)
				}
				f.p.Process(time.Now(), f.bufs, f.sizes, ReadOffset, nil)
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
