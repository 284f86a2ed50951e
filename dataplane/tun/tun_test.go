package tun_test

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
)

var (
	_ dataplane.Device    = (*tun.Device)(nil)
	_ dataplane.Offloader = (*tun.Device)(nil)
)

// A balancer with two virtual addresses, whose servers are reached by eth1.
func Example() {
	dev, err := tun.Open(&tun.Config{
		Routes: []netip.Prefix{netip.MustParsePrefix("192.0.2.80/32"), netip.MustParsePrefix("2001:db8::80/128")},
		Divert: []string{"eth1"},
	})
	if err != nil {
		fmt.Println(err) // e.g. not root
		return
	}
	defer dev.Close()

	const headroom = 16
	bufs, sizes := make([][]byte, dev.BatchSize()), make([]int, dev.BatchSize())
	for i := range bufs {
		bufs[i] = make([]byte, headroom+65535)
	}
	n, err := dev.Read(bufs, sizes, headroom)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range n {
		fmt.Printf("% x\n", bufs[i][headroom:headroom+sizes[i]])
	}
}

func TestConfigFaultsAllAtOnce(t *testing.T) {
	cfg := &tun.Config{
		Name: "much-too-long-a-name", MTU: 576, QueueLen: -1,
		Addrs: []netip.Prefix{{}}, Routes: []netip.Prefix{{}}, Divert: []string{"eth0", ""},
	}
	_, err := tun.OpenQueues(cfg, 300)
	for _, want := range []string{
		`Name "much-too-long-a-name"`, "MTU 576: must be 1280 to 65521", "QueueLen -1", "Addrs[0]", "Routes[0]", `Divert[1] ""`, "300 queues: must be 1 to 256",
	} {
		require.ErrorContains(t, err, want)
	}
	for _, name := range []string{"a/b", "a b", "."} {
		_, err := tun.Open(&tun.Config{Name: name})
		require.ErrorContains(t, err, "Name")
	}
	require.Equal(t, 7, strings.Count(err.Error(), "\n")+1)
}

func TestElsewhereUnsupported(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Skip("this is Linux")
	}
	_, err := tun.Open(nil)
	require.True(t, errors.Is(err, errors.ErrUnsupported))
}
