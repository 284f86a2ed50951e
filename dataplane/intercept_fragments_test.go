package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// inNodesTunnel is what a node sends to the balancer.
func inNodesTunnel(fam family, t Tunnel, node netip.Addr, inner []byte) []byte {
	y := t.wire()
	b := make([]byte, y.Overhead(fam.client.Is6())+len(inner))
	copy(b[len(b)-len(inner):], inner)
	y.Put(b, node.AsSlice(), fam.router.AsSlice(), fam.client.Is6(), 0, 50000, false, 0)
	return b
}

// TestNodesTunnelsInFragments: a packet that just fits its own way is too large in a tunnel. The balancer sends it to the node in fragments of the tunnel, and so does
// the node send it back.
func TestNodesTunnelsInFragments(t *testing.T) {
	for _, tun := range []Tunnel{{}, {Kind: GRE}, {Kind: GRE, Key: 7}, {Kind: GUE, Port: 6080}, {Kind: VXLAN, Key: 7, Port: 4789}} {
		both(t, func(t *testing.T, fam family) {
			p, e := inPath(t, fam, func(c *Config) { c.Intercept.Tunnel = tun })
			from, to := ap(fam.client, 40000), ap(fam.elsewhere, 8000)
			id, _ := e.ID("o2")
			e.SetUp(id, false)
			p.Step(p.now)
			full := udp(from, to, strings.Repeat("0123456789", 147)) // as much as a link takes, but for a few bytes
			_, there := p.sendAll(bytes.Clone(full))
			if fam.client.Is6() {
				there = there[1:] // the sender is told, too
			}
			require.Len(t, there, 2, "to the node: %v", p.drops())
			var view wire.View
			require.Equal(t, wire.OK, wire.Parse(there[0], &view))
			require.Equal(t, fam.n1, addrOf(view.Dst(there[0])))

			unwrapped := uint64(0)
			for i, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}} {
				parts := split(inNodesTunnel(fam, tun, fam.n1, full), 600, uint32(100+i))
				require.Len(t, parts, 3)
				for k, at := range order {
					v, out := p.send(bytes.Clone(parts[at]))
					if k < 2 {
						require.Equal(t, Held, v, "%v: drops %v", tun, p.drops())
						require.Empty(t, out)
						continue
					}
					unwrapped++
					require.Equal(t, Passed, v, "%v: drops %v", tun, p.drops())
					require.Equal(t, full, out)
				}
			}
			require.Equal(t, unwrapped, p.Stats().Unwrapped)
			require.Empty(t, p.inter.parts.m)
			require.Equal(t, Held, p.Explain(split(inNodesTunnel(fam, tun, fam.n1, full), 600, 9)[1]).Verdict)
			// Who is no node is not waited for.
			parts := split(inNodesTunnel(fam, tun, fam.n3, full), 600, 200)
			v, _ := p.send(bytes.Clone(parts[0]))
			require.Equal(t, Dropped, v)
			require.EqualValues(t, 1, p.drops()[ForeignTunnel])
			require.Empty(t, p.inter.parts.m)
			// A fragment that repeats a part with other bytes spoils the packet.
			parts = split(inNodesTunnel(fam, tun, fam.n1, full), 600, 201)
			other := split(inNodesTunnel(fam, tun, fam.n1, full), 584, 201)
			for i, b := range [][]byte{parts[0], other[1], parts[1], parts[2]} {
				v, out := p.send(bytes.Clone(b))
				require.Empty(t, out)
				require.Equal(t, i > 0, v == Dropped)
			}
			// What never becomes whole is forgotten.
			p.send(parts[0])
			p.now = p.now.Add(2 * fragmentLife)
			p.send(split(inNodesTunnel(fam, tun, fam.n1, full), 600, 202)[0])
			require.LessOrEqual(t, len(p.inter.parts.m), 2)
		})
	}
}

// TestInterceptByVLAN: rules see the tag of a frame, and it is still there when the packet leaves.
func TestInterceptByVLAN(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		e, err := intercept.New(&intercept.Config{
			IDs:    new(steering.IDs),
			Nodes:  []intercept.Node{{Node: steering.Node{Name: "o1", Addr: ap(fam.n1, 0)}}, {Node: steering.Node{Name: "o2", Addr: ap(fam.n2, 0)}}},
			InPath: []intercept.InPathRule{{Match: intercept.Match{VLAN: 99}, Action: intercept.PassThrough}},
			Rules:  []intercept.Rule{{Name: "tagged", Match: intercept.Match{VLAN: 42}, Targets: []string{"o1"}}, {Name: "rest", Targets: []string{"o2"}}},
		})
		require.NoError(t, err)
		for id := range e.All() {
			e.SetUp(id, true)
		}
		p, err := New(&Config{Link: Link{Ethernet: true, Ports: true}, NextHop: hopTo, Addrs: []netip.Addr{fam.router}, Intercept: &Intercept{Engine: e}})
		require.NoError(t, err)
		defer p.Close()
		q := &testPlane{Plane: p, t: t, fam: fam, now: time.Now(), w: p.own}
		for i, c := range []struct {
			tags []uint16
			node netip.Addr
		}{{nil, fam.n2}, {[]uint16{42}, fam.n1}, {[]uint16{43}, fam.n2}, {[]uint16{99}, netip.Addr{}}, {[]uint16{42, 7}, fam.n1}} {
			in := frame(tcp(ap(fam.client, uint16(40000+i)), ap(fam.elsewhere, 80), "S", 1, 0, ""), c.tags...)
			v, out := q.send(bytes.Clone(in))
			f, s := wire.ParseEthernet(out)
			require.Equal(t, wire.OK, s, fmt.Sprint(c.tags, q.drops()))
			require.Equal(t, len(c.tags), f.Tags)
			require.Equal(t, in[12:12+4*len(c.tags)], out[12:12+4*len(c.tags)], "the tags stay")
			typ := map[bool]uint16{true: wire.EtherIPv4, false: wire.EtherIPv6}[fam.client.Is4()]
			require.Equal(t, typ, binary.BigEndian.Uint16(out[f.L3-2:]))
			if !c.node.IsValid() {
				require.Equal(t, Passed, v)
				continue
			}
			require.Equal(t, Forwarded, v)
			var w wire.View
			require.Equal(t, wire.OK, wire.Parse(out[f.L3:], &w))
			require.Equal(t, c.node, addrOf(w.Dst(out[f.L3:])), "%v", c.tags)
		}
	})
}

// Congestion that a tunnel has met, as a whole or one of its fragments, is told to the receiver of what it carries, if that understands it.
func TestCongestionInTunnels(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, _ := inPath(t, fam)
		ecn := func(b []byte, to uint8) []byte {
			b = bytes.Clone(b)
			_, v := parseFlow(b)
			v.SetTOS(b, 0xb8|to)
			return b
		}
		id := uint32(0)
		for in := range uint8(4) {
			for outer := range uint8(4) {
				want := in
				if outer == ecnCE && in != 0 {
					want = ecnCE
				}
				inner := ecn(tcp(ap(fam.client, 1), ap(fam.elsewhere, 8000), "A", 1, 1, strings.Repeat("x", 1000)), in)
				whole := ecn(inNodesTunnel(fam, Tunnel{}, fam.n1, inner), outer)
				v, out := p.send(bytes.Clone(whole))
				require.Equal(t, Passed, v)
				require.Equal(t, ecn(inner, want), out, "%d in %d", in, outer)
				for marked := range 2 {
					id++
					parts := split(ecn(whole, 0), 600, id)
					require.Len(t, parts, 2)
					v, _ = p.send(ecn(parts[marked], outer))
					require.Equal(t, Held, v)
					v, out = p.send(parts[1-marked])
					require.Equal(t, Passed, v)
					require.Equal(t, ecn(inner, want), out, "%d in %d", in, outer)
				}
			}
		}
	})
}
