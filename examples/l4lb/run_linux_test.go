package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// hosts is a client, the balancer, and two web servers that say who they are, in both families.
type labHosts struct {
	client, balancer *netns.Namespace
	servers          [2]*netns.Namespace
}

func newHosts(t *testing.T) *labHosts {
	testenv.NeedNetns(t)
	h := &labHosts{}
	for _, ns := range []**netns.Namespace{&h.client, &h.balancer, &h.servers[0], &h.servers[1]} {
		var err error
		*ns, err = netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { (*ns).Close() })
	}
	prefixes := func(s ...string) (ps []netip.Prefix) {
		for _, x := range s {
			ps = append(ps, netip.MustParsePrefix(x))
		}
		return ps
	}
	join := func(ns *netns.Namespace, lbIf string, net int) {
		require.NoError(t, netns.Join(
			netns.End{NS: ns, Name: "eth0", Addrs: prefixes(fmt.Sprintf("10.9.%d.2/24", net), fmt.Sprintf("fd09:%d::2/64", net))},
			netns.End{NS: h.balancer, Name: lbIf, Addrs: prefixes(fmt.Sprintf("10.9.%d.1/24", net), fmt.Sprintf("fd09:%d::1/64", net))}))
		require.NoError(t, ns.DefaultVia(netip.MustParseAddr(fmt.Sprintf("10.9.%d.1", net)), netip.MustParseAddr(fmt.Sprintf("fd09:%d::1", net))))
	}
	join(h.client, "c0", 0)
	for i, s := range h.servers {
		join(s, fmt.Sprintf("e%d", i+1), i+1)
		l, err := s.Listen(t.Context(), "tcp", ":8080")
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "server %d", i+1) })}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { srv.Close() })
	}
	return h
}

const labFile = `version: 1
device: {type: %s, interfaces: [%s], queues: 2}
farms:
  v4:
    metric: roundrobin
    mode: server-per-session
    check: {method: http, interval: 100ms, fall: 2}
    nodes:
      - {name: s1, address: "10.9.1.2:8080"}
      - {name: s2, address: "10.9.2.2:8080"}
  v6:
    metric: roundrobin
    mode: server-per-session
    nodes:
      - {name: s1, address: "[fd09:1::2]:8080"}
      - {name: s2, address: "[fd09:2::2]:8080"}
services:
  - {name: web4, vip: 10.9.100.1, protocol: tcp, port: 80, farm: v4}
  - {name: web6, vip: "fd09:100::1", protocol: tcp, port: 80, farm: v6}
`

// lockedLog is a log that can be read while it is written.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs l4lb inside the balancer's namespace: its sockets and devices are made there, and so are those of its health
// checks, as everything that opens one is started from a thread that lives there.
func (h *labHosts) start(t *testing.T, text string) (file string, log *lockedLog) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "l4lb.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	log = &lockedLog{}
	bin := filepath.Join(t.TempDir(), "l4lb")
	require.NoError(t, build(bin))
	h.exec(t, log, bin, "run", file)
	return file, log
}

func (h *labHosts) get(addr string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: h.client.DialContext}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(addr, "80")+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func TestRun(t *testing.T) {
	for _, device := range []string{"tun", "afpacket"} {
		t.Run(device, func(t *testing.T) {
			h := newHosts(t)
			interfaces := "e1, e2"
			if device == "tun" {
				require.NoError(t, h.balancer.Router())
			} else {
				interfaces = "c0, e1, e2"
			}
			text := fmt.Sprintf(labFile, device, interfaces)
			file, log := h.start(t, text)
			for _, vip := range []string{"10.9.100.1", "fd09:100::1"} {
				require.Eventually(t, func() bool { _, err := h.get(vip); return err == nil }, 20*time.Second, 50*time.Millisecond, "%s: %v", vip, log)
				seen := map[string]int{}
				require.Eventually(t, func() bool { // the other node's check may take a while longer
					body, err := h.get(vip)
					seen[body]++
					return err == nil && len(seen) == 2
				}, 20*time.Second, 50*time.Millisecond)
				clear(seen)
				for range 20 {
					body, err := h.get(vip)
					require.NoErrorf(t, err, "%v", log)
					seen[body]++
				}
				require.InDelta(t, 10, seen["server 1"], 2, "in turn")
				require.InDelta(t, 10, seen["server 2"], 2, "in turn")
			}
			// A bad file changes nothing; a good one is in force within a moment.
			replace := func(text string) {
				require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
				require.NoError(t, os.Rename(file+".new", file))
			}
			replace(strings.Replace(text, "roundrobin", "roundorbin", 1))
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "the old configuration stays in force") }, 10*time.Second, 20*time.Millisecond)
			_, err := h.get("10.9.100.1")
			require.NoError(t, err)
			replace(strings.Replace(text, `{name: s2, address: "10.9.2.2:8080"}`, `{name: s2, address: "10.9.2.2:8080", admin: draining}`, 1))
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "configuration reloaded") }, 10*time.Second, 20*time.Millisecond)
			for range 10 {
				body, err := h.get("10.9.100.1")
				require.NoError(t, err)
				require.Equal(t, "server 1", body, "the other one drains")
			}
		})
	}
}

func TestRunSaysWhyItCannot(t *testing.T) {
	testenv.NeedNetns(t)
	log := slog.New(slog.DiscardHandler)
	err := run(t.Context(), write(t, fmt.Sprintf(labFile, "afpacket", "no-such-if")), log, nil)
	require.ErrorContains(t, err, "no-such-if")
}

// A kernel that forwards nothing would only be silent: the program says so, and how to mend it.
func TestRunWantsForwarding(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Sysctl("net.ipv4.ip_forward", "0"))
	require.NoError(t, h.balancer.Sysctl("net.ipv6.conf.all.forwarding", "0"))
	bin := filepath.Join(t.TempDir(), "l4lb")
	require.NoError(t, build(bin))
	var out []byte
	require.NoError(t, h.balancer.Do(func() error {
		var err error
		out, err = exec.Command(bin, "run", write(t, fmt.Sprintf(labFile, "tun", "e1, e2"))).CombinedOutput()
		require.Error(t, err)
		return nil
	}))
	require.Contains(t, string(out), "sysctl -w net.ipv4.ip_forward=1")
	require.Contains(t, string(out), "sysctl -w net.ipv6.conf.all.forwarding=1")
}
