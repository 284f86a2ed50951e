package afpacket

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
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
	require.Eventually(t, ok, 10*time.Second, 5*time.Millisecond, what)
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

func TestLookupAllocatesNothing(t *testing.T) {
	h, _, run := hopLab(t)
	a := netip.MustParseAddr("192.0.2.77")
	run("neigh", "replace", a.String(), "lladdr", "02:00:00:00:00:01", "dev", "b0", "nud", "permanent")
	eventually(t, "neighbour", func() bool { _, ok := h.Lookup(a); return ok })
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Lookup(a) }))
}
