package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// muffle has a host drop what comes, of all or of one protocol, until it is called.
func muffle(t *testing.T, ns *netns.Namespace, match string) (undo func()) {
	t.Helper()
	nft := testenv.NeedServers(t, "nft")[0]
	run := func(script string) {
		require.NoError(t, ns.Do(func() error {
			if out, err := exec.Command(nft, script).CombinedOutput(); err != nil {
				return fmt.Errorf("nft %v: %w: %s", script, err, out)
			}
			return nil
		}))
	}
	run("add table inet silent ; add chain inet silent in { type filter hook input priority 0 ; } ; add rule inet silent in " + match + " drop")
	return sync.OnceFunc(func() { run("delete table inet silent") })
}

// TestSilentNode: a node that leaves connections unanswered is taken out long before its check would be made, and one that is silent altogether is
// found by a ping.
func TestSilentNode(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	text := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "{socket: none}", "{socket: SOCKET}", 1)
	text = strings.Replace(text, "check: {method: http, interval: 200ms, timeout: 10s, fall: 2}", "check: {interval: 200ms, timeout: 2s}\n    unanswered: 6", 1)
	p := h.start(t, text)
	p.ready()
	// The first check is made; the next in an hour.
	p.write(strings.Replace(text, "interval: 200ms", "interval: 1h", 1))
	p.must("reload")
	node := func(farm string) (n nodeReply) {
		for _, f := range p.status().Farms {
			if f.Name == farm {
				return f.Nodes[0]
			}
		}
		return n
	}
	require.Equal(t, "available", node("v4").State.String())
	speak := muffle(t, h.servers[0], "tcp dport 8080")
	t.Cleanup(speak)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, vip := range []string{"10.9.100.1:80", "[fd09:100::1]:80"} {
		for range 30 { // half of them come to the silent node
			wg.Go(func() {
				if c, err := h.client.DialContext(ctx, "tcp", vip); err == nil {
					c.Close()
				}
			})
		}
	}
	p.eventually("the node is down", func() bool { return node("v4").State.String() == "down" })
	require.Contains(t, node("v4").Reason+node("v4").Health.Note, "unanswered")
	cancel()
	wg.Wait()
	for range 6 {
		body, err := h.get("10.9.100.1")
		require.NoError(t, err)
		require.Equal(t, "server 2", body)
	}
	require.Equal(t, "available", node("v6").State.String(), "without a check, nothing would bring it back")
	speak()
	p.write(strings.Replace(text, "interval: 200ms", "interval: 300ms", 1))
	p.must("reload")
	p.eventually("the node is back", func() bool { return node("v4").State.String() == "available" })

	// Pings. An answer may take as long as the interval: on a busy machine no other node is to miss three.
	pinged := strings.ReplaceAll(strings.Replace(text, "    check: {interval: 200ms, timeout: 2s}\n", "", 1), "    nodes:\n", "    ping: {interval: 1s, fall: 3}\n    nodes:\n")
	p.write(pinged)
	p.must("reload")
	p.ready()
	quiet := muffle(t, h.servers[0], "icmp type echo-request")
	t.Cleanup(quiet)
	p.eventually("it does not answer pings", func() bool { return node("v4").State.String() == "down" })
	require.Equal(t, "available", node("v6").State.String())
	quiet()
	p.eventually("it does again", func() bool { return node("v4").State.String() == "available" })
}
