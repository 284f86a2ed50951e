//go:build linux

package tun_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/netns"
)

func ip(t *testing.T, n *netns.Namespace, args ...string) string {
	t.Helper()
	var out []byte
	require.NoError(t, n.Do(func() (err error) {
		out, err = exec.Command("ip", args...).CombinedOutput()
		return err
	}), "%s", out)
	return string(out)
}

func TestSetRoutes(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Name: "lb0", Routes: prefixes("192.0.2.80/32", "2001:db8::80/128")}, 1)[0]
	set := func(ss ...string) error { return n.Do(func() error { return d.SetRoutes(prefixes(ss...)...) }) }
	require.NoError(t, set("192.0.2.81/24", "2001:db8::80/128"))
	require.Contains(t, ip(t, n, "route"), "192.0.2.0/24 dev lb0")
	require.NotContains(t, ip(t, n, "route"), "192.0.2.80")
	require.Contains(t, ip(t, n, "-6", "route"), "2001:db8::80 dev lb0")
	ip(t, n, "route", "del", "192.0.2.0/24")
	require.NoError(t, set(), "what somebody else removed need not be removed")
	require.NotContains(t, ip(t, n, "-6", "route"), "2001:db8::80")
	require.ErrorContains(t, n.Do(func() error { return d.SetRoutes(netip.Prefix{}) }), "want a network")
	d.Close()
	require.True(t, errors.Is(set("192.0.2.80/32"), os.ErrClosed))
}

// A program that is killed leaves its rules behind; the next device removes them, and no others.
func TestRulesOfTheDeadAreRemoved(t *testing.T) {
	n := namespace(t)
	ip(t, n, "link", "add", "e1", "type", "veth", "peer", "name", "e2")
	for _, family := range []string{"-4", "-6"} {
		ip(t, n, family, "rule", "add", "iif", "e1", "lookup", "1818361955", "priority", "30000") // 0x6c620000 + 99
		ip(t, n, family, "rule", "add", "iif", "e1", "lookup", "99", "priority", "30000")
	}
	d := open(t, n, &tun.Config{Name: "lb0", Divert: []string{"e1"}}, 1)[0]
	for _, family := range []string{"-4", "-6"} {
		rules := ip(t, n, family, "rule")
		require.NotContains(t, rules, "1818361955")
		require.Contains(t, rules, "lookup 99")
	}
	d.Close()
	require.NotContains(t, ip(t, n, "rule"), "lookup 18183619")
}
