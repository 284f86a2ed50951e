package dataplane_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// bulk sends n bytes to the virtual address and back, and compares them.
func (w *world) bulk(v6 bool, port uint16, n int) error {
	c, _, err := w.dial(v6, port)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer c.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), n/16)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes came back, not the %d sent", len(got), len(data))
	}
	return errors.Join(err, <-sent)
}

func filter(t *testing.T, host *netns.Namespace, nft, rules string) {
	t.Helper()
	require.NoError(t, host.Do(func() error {
		c := exec.Command(nft, "-f", "-")
		c.Stdin = strings.NewReader(rules)
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
		return nil
	}))
}

// TestNetnsNarrowLinks has a cable on the way with room for less than the others, at each place where it can be: before the balancer,
// next to it on either side, and behind it. Each would be a black hole for those to whom an error is not translated; senders must learn of it
// and go on. The last has a router that says nothing: only a lower MSS helps.
func TestNetnsNarrowLinks(t *testing.T) {
	tools := testenv.NeedServers(t, "nft", "ping")
	const narrow = 1300
	for _, c := range []struct {
		cable  string
		mtu    int // of the service
		silent bool
	}{{"c0", 0, false}, {"n0", 0, false}, {"f0", narrow, false}, {"s1", 0, false}, {"s1", narrow, true}} {
		for _, mode := range []dataplane.Forward{dataplane.NAT, dataplane.FullNAT} {
			name := fmt.Sprintf("%v, %s narrow", mode, c.cable)
			if c.silent {
				name += ", silent"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel() // they mostly wait
				w := newWorld(t, how{
					routers: true, own: []netip.Addr{waddr(false, 10, 1), waddr(true, 10, 1)}, past: mode == dataplane.FullNAT,
					routes: []netip.Prefix{netip.PrefixFrom(wlocal(false), 32), netip.PrefixFrom(wlocal(true), 128)},
					mtu: func(cable string) int {
						if cable == c.cable || cable == "s2" && c.cable == "s1" {
							return narrow
						}
						return 0
					},
					service: func(s *dataplane.Service, v6 bool) {
						if s.MTU, s.Forward = c.mtu, mode; mode == dataplane.FullNAT {
							s.Locals = []netip.Addr{wlocal(v6)}
						}
					},
				})
				if c.silent {
					for _, host := range []*netns.Namespace{w.far, w.balancer} {
						filter(t, host, tools[0], `table inet t { chain c { type filter hook output priority 0;
							icmp type destination-unreachable drop
							icmpv6 type packet-too-big drop
						}
						}`)
					}
				}
				for _, v6 := range []bool{false, true} {
					w.serve(t, 0, v6, 5010)
					w.serve(t, 1, v6, 5010)
					for range 2 { // each server
						require.NoError(t, w.bulk(v6, 5010, 1<<20), "IPv6 %v", v6)
					}
					if c.silent {
						continue // a datagram has no MSS
					}
					// Datagrams that must not be fragmented: the sender learns what fits, and uses it.
					full, family := 1472, "-4"
					if v6 {
						full, family = 1452, "-6"
					}
					ping := func(size int) (string, error) {
						return run(t, w.client, tools[1], family, "-n", "-c", "1", "-W", "1", "-M", "do", "-s", strconv.Itoa(size), wvip(v6).String())
					}
					for deadline := time.Now().Add(20 * time.Second); ; { // an error may be over the limit of a second
						out, err := ping(full)
						require.Error(t, err)
						if strings.Contains(out, "mtu = "+strconv.Itoa(narrow)) || strings.Contains(out, "mtu: "+strconv.Itoa(narrow)) || strings.Contains(out, "mtu="+strconv.Itoa(narrow)) {
							break
						}
						require.True(t, time.Now().Before(deadline), out)
					}
					out, err := ping(full - 1500 + narrow)
					require.NoError(t, err, out)
					// Those that may be, arrive.
					for i := range w.servers {
						w.echoAt(t, i, waddr(v6, byte(1+i), 2), 5011)
					}
					require.NoError(t, w.askOnce(v6, 5011, 4000))
				}
			})
		}
	}
}
