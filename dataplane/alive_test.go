package dataplane

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowds runs a test with one, some, and more than are looked up together.
func crowds(t *testing.T, f func(t *testing.T, p *testPlane, n int)) {
	for _, n := range []int{1, chunk, 3*chunk + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			both(t, func(t *testing.T, fam family) { f(t, newPlane(t, fam), n) })
		})
	}
}

// TestOneDirectionKeepsBothEntries has a client send, and its node answer a good deal later: after a lone packet, and after so many
// that some wait for a place among the others to be kept alive.
func TestOneDirectionKeepsBothEntries(t *testing.T) {
	crowds(t, func(t *testing.T, p *testPlane, n int) {
		fam, vip := p.fam, ap(p.fam.vip, 80)
		packets := make([][]byte, n)
		for i := range packets {
			packets[i] = udp(ap(fam.client, 1000+uint16(i)), vip, "x")
		}
		_, out := p.sendAll(packets...)
		for range 3 { // all but a minute apart, more than a minute in all
			p.now = p.now.Add(59 * time.Second)
			p.sendAll(packets...)
			p.Step(p.now)
		}
		p.now = p.now.Add(59 * time.Second)
		p.Step(p.now)
		require.Equal(t, n, p.Stats().Sessions)
		for _, o := range out {
			f, _ := parseFlow(o)
			p.forwarded(udp(f.Dst, f.Src, "y"), vip, f.Src)
		}
	})
}

// TestClientsStayRemembered has clients send for longer than the idle time, some more than are looked up together: their next connections
// go where their sessions are.
func TestClientsStayRemembered(t *testing.T) {
	crowds(t, func(t *testing.T, p *testPlane, n int) {
		fam, vip := p.fam, ap(p.fam.vip, 80)
		var packets, next [][]byte
		for a := fam.client; len(packets) < n; a = a.Next() {
			packets = append(packets, udp(ap(a, 1000), vip, "x"))
			next = append(next, udp(ap(a, 2000), vip, "x"))
		}
		var went []netip.AddrPort
		for range 6 {
			_, out := p.sendAll(packets...)
			require.Len(t, out, n)
			went = went[:0]
			for _, o := range out {
				f, _ := parseFlow(o)
				went = append(went, f.Dst)
			}
			p.now = p.now.Add(50 * time.Second)
		}
		_, out := p.sendAll(next...)
		require.Len(t, out, n)
		for i, o := range out {
			f, _ := parseFlow(o)
			require.Equal(t, went[i], f.Dst)
		}
	})
}
