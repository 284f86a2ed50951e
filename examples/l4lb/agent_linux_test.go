package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// agents has an agent on each server, which says what it is told to say.
func (h *labHosts) agents(t *testing.T, port int) (says [2]*atomic.Value) {
	t.Helper()
	for i, s := range h.servers {
		says[i] = &atomic.Value{}
		says[i].Store("up ready 100%")
		l, err := s.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
		require.NoError(t, err)
		testenv.Accept(t, l, func(c net.Conn) { _, _ = io.WriteString(c, says[i].Load().(string)+"\n") })
	}
	return says
}

// TestAgents: what agents say of weight, limit, draining, maintenance and health is done, in both families, with a check beside them or without,
// and until the file has no agent any more.
func TestAgents(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	says := h.agents(t, 9999)
	plain := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "{socket: none}", "{socket: SOCKET}", 1)
	text := strings.ReplaceAll(plain, "    nodes:\n", "    agent: {port: 9999, interval: 200ms, timeout: 10s}\n    nodes:\n")
	require.NotEqual(t, plain, text)
	p := h.start(t, text)
	p.ready()
	node := func(farm, name string) (n nodeReply) {
		for _, f := range p.status().Farms {
			for _, x := range f.Nodes {
				if f.Name == farm && x.Name == name {
					return x
				}
			}
		}
		require.FailNow(t, "no such node")
		return n
	}
	for _, c := range []struct {
		says, state, agent, reason string
		share                      float64
	}{
		{"33%", "available", "33 % of the weight", "", 0.25}, // the least weight is 1, so with weight 3: 1 of 4
		{"100%", "available", "100 % of the weight", "", 0.5},
		{"drain", "draining", "100 % of the weight, drain", "its agent says drain", 0},
		{"ready", "available", "100 % of the weight", "", 0.5},
		{"maint", "down", "100 % of the weight, maint", "its agent says maint", 0},
		{"ready up", "available", "100 % of the weight", "", 0.5},
		{"down # disk full", "down", "100 % of the weight, down disk full", "its agent says down disk full", 0},
		{"up maxconn:0", "draining", "100 % of the weight, at most 0 sessions", "its agent says at most 0 sessions", 0},
		{"maxconn:5", "available", "100 % of the weight, at most 5 sessions", "", 0.5},
		{"0%", "weight-zero", "0 % of the weight, at most 5 sessions", "its agent says 0 %", 0},
	} {
		switch c.says {
		case "33%":
			p.write(strings.ReplaceAll(text, `8080"}`, `8080", weight: 3}`))
			p.must("reload")
		case "100%":
			p.write(text)
			p.must("reload")
		}
		says[0].Store(c.says)
		for _, farm := range []string{"v4", "v6"} {
			p.eventually(farm+": "+c.says, func() bool {
				n := node(farm, "s1")
				return n.State.String() == c.state && n.Agent == c.agent && strings.Contains(n.Reason, c.reason) && n.Share > c.share-0.01 && n.Share < c.share+0.01
			})
		}
		if c.share == 0 {
			for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
				for range 3 {
					body, err := h.get(vip)
					require.NoError(t, err)
					require.Equal(t, "server 2", body, c.says)
				}
			}
		}
	}
	says[0].Store("drain 100%")
	p.eventually("it drains", func() bool {
		return node("v4", "s1").State.String() == "draining" && node("v6", "s1").State.String() == "draining"
	})
	require.Equal(t, 5, node("v4", "s1").Max)
	// Without agents, nobody has said anything.
	p.write(plain)
	p.must("reload")
	for _, farm := range []string{"v4", "v6"} {
		p.eventually("no agent, no advice", func() bool {
			n := node(farm, "s1")
			return n.State.String() == "available" && n.Agent == "" && n.Max == 0
		})
	}
	// A limit of the file that is raised is in force at once.
	for _, limit := range []int{7, 70, 0} {
		p.write(strings.Replace(plain, `8080"}`, fmt.Sprintf(`8080", max-sessions: %d}`, limit), 1))
		p.must("reload")
		require.Equal(t, limit, node("v4", "s1").Max)
	}
}
