package afpacket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// hopLab is a balancer host with a neighbour, whose tables a Hops follows.
func hopLab(t *testing.T) (h *Hops, balancer *netns.Namespace, run func(args ...string)) {
	testenv.NeedNetns(t)
	balancer, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { balancer.Close() })
	peer, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() { peer.Close() })
	prefix := netip.MustParsePrefix
	require.NoError(t, netns.Join(
		netns.End{NS: balancer, Name: "b0", Addrs: []netip.Prefix{prefix("192.0.2.1/24"), prefix("2001:db8::1/64")}},
		netns.End{NS: peer, Name: "p0", Addrs: []netip.Prefix{prefix("192.0.2.2/24"), prefix("2001:db8::2/64")}}))
	require.NoError(t, balancer.Do(func() (err error) { h, err = NewHops(); return err }))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	return h, balancer, func(args ...string) {
		t.Helper()
		require.NoError(t, balancer.Do(func() error {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				return errors.New(string(out))
			}
			return nil
		}))
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what)
}

func TestHopsResolveNeighbours(t *testing.T) {
	h, _, run := hopLab(t)
	for _, dst := range []string{"192.0.2.2", "2001:db8::2", "::ffff:192.0.2.2"} {
		a := netip.MustParseAddr(dst)
		eventually(t, dst, func() bool { _, ok := h.Lookup(a); return ok })
		hop, _ := h.Lookup(a)
		require.NotZero(t, hop.Src)
		require.NotZero(t, hop.Dst)
		require.Equal(t, 1500, hop.MTU)
		again, ok := h.OnLink(hop.Port, a)
		require.True(t, ok)
		require.Equal(t, hop, again)
	}
	_, ok := h.Lookup(netip.MustParseAddr("198.51.100.1"))
	require.False(t, ok, "no route")
	_, ok = h.Lookup(netip.Addr{})
	require.False(t, ok)

	// Routes through the neighbour, the longest prefix first.
	near, _ := h.Lookup(netip.MustParseAddr("192.0.2.2"))
	run("route", "add", "198.51.100.0/24", "via", "192.0.2.2")
	run("neigh", "add", "192.0.2.3", "lladdr", "02:00:00:00:00:33", "dev", "b0", "nud", "permanent")
	run("route", "add", "198.51.100.128/25", "via", "192.0.2.3")
	eventually(t, "route", func() bool {
		hop, ok := h.Lookup(netip.MustParseAddr("198.51.100.200"))
		return ok && hop.Dst == [6]byte{2, 0, 0, 0, 0, 0x33}
	})
	hop, ok := h.Lookup(netip.MustParseAddr("198.51.100.1"))
	require.True(t, ok)
	require.Equal(t, near, hop)

	// A lower metric wins; a multipath route gives one of its hops.
	run("route", "add", "203.0.113.0/24", "via", "192.0.2.2", "metric", "200")
	run("route", "add", "203.0.113.0/24", "via", "192.0.2.3", "metric", "100")
	eventually(t, "metric", func() bool {
		hop, ok := h.Lookup(netip.MustParseAddr("203.0.113.1"))
		return ok && hop.Dst[5] == 0x33
	})
	run("-6", "route", "add", "2001:db8:5::/48", "via", "2001:db8::2")
	eventually(t, "IPv6 route", func() bool { _, ok := h.Lookup(netip.MustParseAddr("2001:db8:5::1")); return ok })
	run("route", "add", "default", "nexthop", "via", "192.0.2.2", "nexthop", "via", "192.0.2.3")
	eventually(t, "multipath", func() bool { _, ok := h.Lookup(netip.MustParseAddr("8.8.8.8")); return ok })

	// All ends with the link.
	before := h.Generation()
	run("link", "set", "b0", "down")
	eventually(t, "link down", func() bool { _, ok := h.Lookup(netip.MustParseAddr("192.0.2.2")); return !ok })
	require.Greater(t, h.Generation(), before)

	// The kernel forgot its routes; so does the table when the link is back.
	run("link", "set", "b0", "up")
	eventually(t, "link up", func() bool { _, ok := h.Lookup(netip.MustParseAddr("192.0.2.2")); return ok })
	_, ok = h.Lookup(netip.MustParseAddr("198.51.100.1"))
	require.False(t, ok, "a route that went with the link")
}

func TestHopsFollowAMACThatChanges(t *testing.T) {
	h, _, run := hopLab(t)
	a := netip.MustParseAddr("192.0.2.77")
	for _, mac := range []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} {
		run("neigh", "replace", a.String(), "lladdr", mac, "dev", "b0", "nud", "permanent")
		eventually(t, mac, func() bool { hop, ok := h.Lookup(a); return ok && hop.Dst[5] == mac[16]-'0' })
	}
	run("neigh", "del", a.String(), "dev", "b0")
	eventually(t, "deleted", func() bool { _, ok := h.Lookup(a); return !ok })
}

// A route that is replaced is announced by the new one alone; one that rejects covers what shorter prefixes say.
func TestHopsUnderRouteChurn(t *testing.T) {
	h, _, run := hopLab(t)
	for i, mac := range []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} {
		run("neigh", "add", []string{"192.0.2.11", "192.0.2.12"}[i], "lladdr", mac, "dev", "b0", "nud", "permanent")
		run("neigh", "add", []string{"2001:db8::11", "2001:db8::12"}[i], "lladdr", mac, "dev", "b0", "nud", "permanent")
	}
	leads := func(dst string, last byte) func() bool {
		return func() bool { hop, ok := h.Lookup(netip.MustParseAddr(dst)); return ok && hop.Dst[5] == last }
	}
	for range 3 {
		for i, via := range []string{"192.0.2.11", "192.0.2.12"} {
			run("route", "replace", "198.51.100.0/24", "via", via)
			eventually(t, via, leads("198.51.100.1", byte(i+1)))
		}
		for i, via := range []string{"2001:db8::11", "2001:db8::12"} {
			run("route", "replace", "2001:db8:5::/48", "via", via)
			eventually(t, via, leads("2001:db8:5::1", byte(i+1)))
		}
	}
	run("route", "add", "default", "via", "192.0.2.11")
	eventually(t, "default", leads("203.0.113.200", 1))
	for _, kind := range []string{"blackhole", "unreachable", "prohibit"} {
		run("route", "add", kind, "203.0.113.128/25")
		eventually(t, kind, func() bool { _, ok := h.Lookup(netip.MustParseAddr("203.0.113.200")); return !ok })
		require.True(t, leads("203.0.113.1", 1)())
		run("route", "del", kind, "203.0.113.128/25")
		eventually(t, kind+" deleted", leads("203.0.113.200", 1))
	}
	run("route", "add", "198.51.100.0/25", "tos", "0x10", "via", "192.0.2.11")
	time.Sleep(20 * time.Millisecond)
	require.True(t, leads("198.51.100.1", 2)(), "a route for one kind of service")

	// Thousands of changes at once, more than the socket holds: in the end the table is the kernel's.
	var batch strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&batch, "route replace 100.64.%d.%d/32 via 192.0.2.%d\n", i/250, i%250, 11+i%2)
	}
	for i := range 3000 {
		if i%3 == 0 {
			fmt.Fprintf(&batch, "route del 100.64.%d.%d/32\n", i/250, i%250)
		}
	}
	file := filepath.Join(t.TempDir(), "batch")
	require.NoError(t, os.WriteFile(file, []byte(batch.String()), 0o600))
	run("route", "del", "default")
	run("-batch", file)
	eventually(t, "the kernel's routes", func() bool {
		for i := range 3000 {
			hop, ok := h.Lookup(netip.AddrFrom4([4]byte{100, 64, byte(i / 250), byte(i % 250)}))
			if ok != (i%3 != 0) || ok && hop.Dst[5] != byte(1+i%2) {
				return false
			}
		}
		return true
	})
}

// The kernel forgets who is not asked for; a MAC that has become stale is used, and confirmed by the kernel, so that a host which was
// replaced is found again.
func TestStaleNeighboursAreConfirmed(t *testing.T) {
	h, balancer, run := hopLab(t)
	require.NoError(t, balancer.Sysctl("net.ipv4.neigh.b0.delay_first_probe_time", "1"))
	require.NoError(t, balancer.Sysctl("net.ipv4.neigh.b0.retrans_time_ms", "100"))
	a := netip.MustParseAddr("192.0.2.2")
	run("neigh", "replace", a.String(), "lladdr", "02:00:00:00:00:55", "dev", "b0", "nud", "stale")
	eventually(t, "stale", func() bool { hop, ok := h.Lookup(a); return ok && hop.Dst[5] == 0x55 })
	eventually(t, "the MAC of now", func() bool { hop, ok := h.Lookup(a); return ok && hop.Dst[5] != 0x55 })
}

func TestLookupAllocatesNothing(t *testing.T) {
	h, _, run := hopLab(t)
	a := netip.MustParseAddr("192.0.2.77")
	run("neigh", "replace", a.String(), "lladdr", "02:00:00:00:00:01", "dev", "b0", "nud", "permanent")
	eventually(t, "neighbour", func() bool { _, ok := h.Lookup(a); return ok })
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Lookup(a) }))
}
