package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// tooBig is an ICMP error that says so about n bytes of b behind its IP header.
func tooBig(from, to netip.Addr, b []byte, mtu uint32, n int) []byte {
	h, typ, code := 20, uint8(3), uint8(4)
	if !from.Is4() {
		h, typ, code = 40, 2, 0
	}
	return icmp(from, to, typ, code, mtu, string(b[:min(len(b), h+n)]))
}

// unbroken returns a packet that may not be broken into fragments.
func unbroken(b []byte) []byte {
	if b[0]>>4 == 4 {
		b[6] |= 0x40
		binary.BigEndian.PutUint16(b[10:], 0)
		binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:20]))
	}
	return b
}

func ownOf(outer family) netip.Addr {
	if outer.n1.Is4() {
		return own()[0]
	}
	return own()[1]
}

func TestPathMTUOfTunnels(t *testing.T) {
	for _, tun := range []Tunnel{{}, {Kind: GRE, Key: 77}, {Kind: GUE}, {Kind: VXLAN, Key: 4711}} {
		for _, fam := range families2() {
			for _, outer := range families2() {
				t.Run(fmt.Sprintf("%v/%s in %s", tun, fam.name, outer.name), func(t *testing.T) {
					p := tunnelPlane(t, fam, outer, tun)
					client, vip, own := ap(fam.client, 40000), ap(fam.vip, 80), ownOf(outer)
					tw := tun.wire()
					over := tw.Overhead(!outer.n1.Is4())
					big := unbroken(udp(client, vip, strings.Repeat("x", 1300)))
					v, out := p.send(big)
					require.Equal(t, Forwarded, v, p.drops())

					const mtu = 1290
					v, none := p.send(tooBig(outer.router, own, out, mtu, 8))
					require.Equal(t, Held, v, p.drops())
					require.Empty(t, none)
					require.EqualValues(t, 1, p.Stats().Errors)

					// The sender is told what fits inside, and the packet goes in fragments of the outer one.
					told := func() []byte {
						t.Helper()
						p.now = p.now.Add(2 * time.Second)
						_, outs := p.sendAll(big)
						require.Len(t, outs, 3)
						for _, b := range outs[1:] {
							require.LessOrEqual(t, len(b), mtu)
						}
						return outs[0]
					}
					e := told()
					_, view := parseFlow(e)
					require.True(t, view.Has(wire.ICMPError))
					want := mtu - over
					if !fam.vip.Is4() {
						want = max(want, 1280)
					}
					require.EqualValues(t, want, view.MTU(e))
					require.Equal(t, fam.client, addrOf(view.Dst(e)))

					// What fits goes as before, and new connections are offered less.
					small := unbroken(udp(client, vip, strings.Repeat("x", 1000)))
					v, out = p.send(small)
					require.Equal(t, Forwarded, v)
					_, view = parseFlow(out)
					require.True(t, view.DontFragment(out))
					_, out = p.send(tcp(client, vip, "S", 1, 0, ""))
					_, view = parseFlow(out[over:])
					mss, _ := view.MSS(out[over:])
					headers := map[bool]int{true: 40, false: 60}[fam.vip.Is4()]
					require.EqualValues(t, mtu-over-headers, mss)

					// More is not believed; after a while it is tried.
					v, _ = p.send(tooBig(outer.router, own, make1400(outer, out), 1350, 8))
					require.Equal(t, Held, v)
					told()
					p.now = p.now.Add(pathLife)
					v, out = p.send(big)
					require.Equal(t, Forwarded, v)
					require.Len(t, out, len(big)+over)
					p.Step(p.now)
					require.Nil(t, p.paths.known.Load())
				})
			}
		}
	}
}

// make1400 is an outer packet that says it is 1400 bytes long.
func make1400(outer family, b []byte) []byte {
	b = append([]byte(nil), b...)
	if outer.n1.Is4() {
		binary.BigEndian.PutUint16(b[2:], 1400)
	} else {
		binary.BigEndian.PutUint16(b[4:], 1400-40)
	}
	return b
}

// TestPathMTUUnbelieved: errors that are about no tunnel to a node, or that cannot be right.
func TestPathMTUUnbelieved(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := tunnelPlane(t, fam, fam, Tunnel{Kind: GRE, Key: 77})
		own, client, vip := ownOf(fam), ap(fam.client, 40000), ap(fam.vip, 80)
		_, out := p.send(unbroken(udp(client, vip, strings.Repeat("x", 1300))))
		at := map[bool]int{true: 20, false: 40}[fam.vip.Is4()]
		src, dst := at-8, at-4
		if at == 40 {
			src, dst = 8, 24
		}
		change := func(at int, d byte) []byte {
			b := append([]byte(nil), out...)
			b[at] ^= d
			return b
		}
		for name, b := range map[string][]byte{
			"not from here":         tooBig(fam.router, own, change(src, 1), 1300, 8),
			"to no node":            tooBig(fam.router, own, change(dst, 1), 1300, 8),
			"another key":           tooBig(fam.router, own, change(at+7, 1), 1300, 8),
			"another kind":          tooBig(fam.router, own, change(at, 0x80), 1300, 8),
			"another protocol":      tooBig(fam.router, own, change(map[bool]int{true: 9, false: 6}[at == 20], 47^99), 1300, 8),
			"too little quoted":     tooBig(fam.router, own, out, 1300, 7),
			"no more than it takes": tooBig(fam.router, own, out, uint32(len(out)), 8),
			"to somebody else":      tooBig(fam.router, fam.elsewhere, out, 1300, 8),
			"another error":         unreachable(fam.router, own, out, 8),
		} {
			p.send(b)
			require.Nil(t, p.paths.known.Load(), name)
		}
		bad := tooBig(fam.router, own, out, 1300, 60)
		bad[len(bad)-1] ^= 1
		v, _ := p.send(bad)
		require.Equal(t, Dropped, v)
		require.Nil(t, p.paths.known.Load())
		p.Explain(tooBig(fam.router, own, out, 1300, 8))
		require.Nil(t, p.paths.known.Load())

		if at == 40 {
			p.send(tooBig(fam.router, own, out, 1279, 8))
			require.Nil(t, p.paths.known.Load(), "no link of IPv6 is so narrow")
			return
		}
		// Routers that do not say how much they take, and less than what is believed.
		big := unbroken(udp(client, vip, strings.Repeat("x", 1300)))
		for _, c := range []struct {
			said uint32
			mtu  int
			df   bool
		}{{0, 1006, true}, {68, 576, false}} {
			v, _ := p.send(tooBig(fam.router, own, out, c.said, 8))
			require.Equal(t, Held, v)
			_, outs := p.sendAll(big)
			for _, b := range outs {
				require.LessOrEqual(t, len(b), c.mtu)
			}
			_, small := p.send(unbroken(udp(client, vip, "x")))
			_, view := parseFlow(small)
			require.Equal(t, c.df, view.DontFragment(small))
		}
	})
}

// TestPathMTUOfSuperPackets: a stream is cut into what fits.
func TestPathMTUOfSuperPackets(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := tunnelPlane(t, fam, fam, Tunnel{})
		p.w = p.NewWorker(Link{Virtio: true})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		data := strings.Repeat("0123456789", 500)
		send := func() (outs [][]byte) {
			b := unbroken(tcp(client, vip, "PA", 1, 1, data))
			buf := append(make([]byte, ReadOffset), b...)
			_, v := parseFlow(b)
			o := offload{flags: virtioNeedsCsum, gsoType: map[bool]uint8{true: gsoTCPv4, false: gsoTCPv6}[fam.vip.Is4()], hdrLen: uint16(v.Payload), gsoSize: 1400,
				csumStart: uint16(v.L4), csumAt: 16}
			o.write(buf[ReadOffset-virtioLen:])
			for _, o := range p.w.Process(p.now, [][]byte{buf}, []int{len(b)}, ReadOffset, nil) {
				outs = append(outs, append([]byte(nil), o[Headroom:]...))
			}
			return outs
		}
		v, _ := p.sendAll(tcp(client, vip, "S", 0, 0, ""))
		require.Equal(t, Forwarded, v[0])
		out := send()
		require.Len(t, out, 4)
		p.sendAll(tooBig(fam.router, ownOf(fam), out[0], 1300, 8))
		over := 20
		if !fam.vip.Is4() {
			over = 40
		}
		got := ""
		for _, b := range send() {
			_, v := parseFlow(b)
			if v.Has(wire.ICMPError) {
				continue
			}
			require.LessOrEqual(t, len(b), 1300)
			require.False(t, v.Has(wire.Fragment))
			_, w := parseFlow(b[over:])
			require.True(t, w.SumOK(b[over:]))
			require.EqualValues(t, 1+len(got), numbers(b[over:]).Seq)
			got += string(b[over:][w.Payload:w.End])
		}
		require.Equal(t, data, got)
	})
}

// TestPathsAreBounded: what is learned is, too.
func TestPathsAreBounded(t *testing.T) {
	var p paths
	a := netip.MustParseAddr("10.0.0.0")
	for range maxPaths + 10 {
		a = a.Next()
		p.learn(0, a, 1300)
	}
	require.Len(t, *p.known.Load(), maxPaths)
	first := netip.MustParseAddr("10.0.0.1")
	p.learn(5, first, 1400)
	require.EqualValues(t, 1300, (*p.known.Load())[first].mtu.Load())
	p.learn(5, first, 1200)
	p.step(int64(pathLife))
	require.Len(t, *p.known.Load(), 1)
	p.step(int64(pathLife) + 5)
	require.Nil(t, p.known.Load())
}
