package dataplane

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/devtest"
	"github.com/lbprim/lbprim/internal/wire"
)

// teamed is a running plane of two devices.
type teamed struct {
	*testPlane
	outs []outside
}

func newTeamed(t *testing.T, fam family, change ...func(*Config, *Service)) *teamed {
	var devs []Device
	p := &teamed{}
	for range 2 {
		a, b, err := devtest.Pair(&devtest.Config{Virtio: true, Batch: 8})
		require.NoError(t, err)
		devs, p.outs = append(devs, a), append(p.outs, outside{b, t})
	}
	p.testPlane = newPlane(t, fam, append(change, func(c *Config, _ *Service) { c.Devices = devs })...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		for _, o := range p.outs {
			o.Close()
		}
	})
	return p
}

// stay reads so many packets that come out at the first device, and counts them. done says of which the node is not the one that the client's packets before
// went to, or that there is none.
func (p *teamed) stay(packets int) (got *atomic.Uint32, done <-chan string) {
	got = new(atomic.Uint32)
	end := make(chan string, 1)
	go func() {
		node := map[netip.AddrPort]netip.AddrPort{}
		for range packets {
			f, _ := parseFlow(p.outs[0].receive())
			if was := node[f.Src]; was.IsValid() && was != f.Dst {
				end <- fmt.Sprintf("%v > %v, which was %v before", f.Src, f.Dst, was)
				return
			}
			node[f.Src] = f.Dst
			got.Add(1)
		}
		end <- ""
	}()
	return got, end
}

// through sends a packet by a device, and returns what comes out and the name of the worker that had it.
func (p *teamed) through(dev int, b []byte) (out []byte, worker string) {
	before := p.WorkerStats()
	p.outs[dev].send(b)
	out = p.outs[dev].receive()
	for i, s := range p.WorkerStats() {
		was := uint64(0)
		if i < len(before) {
			was = before[i].Read.Packets
		}
		if s.Read.Packets > was {
			require.Empty(p.t, worker)
			worker = s.Name
		}
	}
	return out, worker
}

// TestWorkersByClient sends the two directions of sessions by different devices.
func TestWorkersByClient(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for name, change := range map[string]func(*Config, *Service){
			"NAT":      func(*Config, *Service) {},
			"full NAT": func(_ *Config, s *Service) { s.Forward, s.Locals = FullNAT, []netip.Addr{fam.elsewhere} },
		} {
			t.Run(name, func(t *testing.T) {
				p := newTeamed(t, fam, change, func(c *Config, _ *Service) { c.Workers = 3 })
				require.Equal(t, 3, p.Workers())
				seen := map[string]int{}
				vip := ap(fam.vip, 80)
				for i := range uint16(60) {
					client := ap(fam.client, 30000+i)
					out, there := p.through(0, udp(client, vip, "ask"))
					f, _ := parseFlow(out)
					out, back := p.through(1, udp(f.Dst, f.Src, "answer"))
					g, _ := parseFlow(out)
					require.Equal(t, client, g.Dst)
					require.Equal(t, there, back)
					require.Contains(t, there, "worker ")
					seen[there]++
				}
				require.Len(t, seen, 3)
				// What is between others has one worker both ways, too, and so have fragments and errors about them.
				a, b := ap(fam.client, 1), ap(fam.client2, 2)
				_, there := p.through(0, udp(a, b, "by the way"))
				_, back := p.through(1, udp(b, a, "by the way"))
				require.Equal(t, there, back)
			})
		}
	})
}

// TestWorkersChange changes the number of workers under traffic: no packet is lost or overtaken, no session ends.
func TestWorkersChange(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newTeamed(t, fam, func(c *Config, _ *Service) { c.Workers = 1 })
		const clients = 8
		vip := ap(fam.vip, 80)
		node := map[netip.AddrPort]netip.AddrPort{}
		var got atomic.Uint32
		const packets = 8000
		done := make(chan string, 1)
		go func() {
			next := map[netip.AddrPort]uint32{}
			for range packets {
				b := p.outs[0].receive()
				f, v := parseFlow(b)
				n := binary.BigEndian.Uint32(b[v.Payload:])
				if n != next[f.Src] || node[f.Src].IsValid() && node[f.Src] != f.Dst {
					done <- fmt.Sprintf("%v > %v (%v before): packet %d, not %d", f.Src, f.Dst, node[f.Src], n, next[f.Src])
					return
				}
				next[f.Src]++
				node[f.Src] = f.Dst
				got.Add(1)
			}
			done <- ""
		}()
		var payload [4]byte
		sizes := []int{1, 4, 2, 0, 7, 0, 3}
		for i := range uint32(packets) {
			if i%500 == 250 {
				require.NoError(t, p.SetWorkers(sizes[int(i/500)%len(sizes)]))
			}
			binary.BigEndian.PutUint32(payload[:], i/clients)
			for deadline := time.Now().Add(30 * time.Second); i-got.Load() > 200; time.Sleep(50 * time.Microsecond) {
				require.True(t, time.Now().Before(deadline), "packets are lost")
			}
			p.outs[0].send(udp(ap(fam.client, 40000+uint16(i%clients)), vip, string(payload[:])))
		}
		require.Empty(t, <-done)
		require.Equal(t, clients, p.Stats().Sessions)
	})
}

func TestWorkersRefused(t *testing.T) {
	p := newPlane(t, families2()[0])
	for _, n := range []int{-1, 257} {
		require.ErrorIs(t, p.SetWorkers(n), ErrInvalid)
		_, err := New(&Config{Workers: n})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "Config.Workers")
	}
	require.NoError(t, p.SetWorkers(2)) // before Run, without effect on Process
	require.Equal(t, 2, p.Workers())
	v, _ := p.send(udp(ap(p.fam.client, 1), ap(p.fam.vip, 80), "x"))
	require.Equal(t, Forwarded, v)
}

// TestSpread has errors and fragments go where their sessions go.
func TestSpread(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		s := p.snap.Load()
		client, vip, node := ap(fam.client, 1234), ap(fam.vip, 80), ap(fam.n1, 8080)
		want := s.spread(udp(client, vip, "x"))
		require.Equal(t, want, s.spread(udp(node, client, "x")))
		require.Equal(t, want, s.spread(tcp(client, vip, "S", 1, 0, "")))
		e := endOf(client)
		version := uint8(4)
		if client.Addr().Is6() {
			version = 6
		}
		require.Equal(t, want, spreadEnd(&e, version))
		require.NotEqual(t, want, s.spread(udp(ap(fam.client, 1235), vip, "x")))
		require.Zero(t, s.spread(nil))

		// An error about a packet to the client, and one about a packet to the node.
		p.send(udp(client, vip, "x"))
		for _, quoted := range [][]byte{udp(vip, client, "answer"), udp(client, node, "ask")} {
			var v wire.View
			require.Equal(t, wire.OK, wire.Parse(quoted, &v))
			b := make([]byte, wire.MaxReply)
			router := fam.router.AsSlice()
			typ := uint8(wire.ICMPTimeExceeded)
			if version == 6 {
				typ = wire.ICMPv6TimeExceeded
			}
			n := wire.BuildICMPError(b, quoted, &v, router, typ, 0, 0)
			require.NotZero(t, n)
			require.Equal(t, want, s.spread(b[:n]))
		}
	})
}
