package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// TestTLSPersistence: OpenSSL resumes its sessions by their IDs, which only the server that issued one knows. With persistence every one is
// resumed; the servers take turns for everybody else.
func TestTLSPersistence(t *testing.T) {
	openssl := testenv.NeedServers(t, "openssl")[0]
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	selfSigned(t, cert, key)
	for _, s := range h.servers {
		cmd := exec.Command(openssl, "s_server", "-quiet", "-www", "-accept", "8443", "-cert", cert, "-key", key, "-no_ticket", "-tls1_2")
		require.NoError(t, s.Do(cmd.Start))
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	collector, err := h.balancer.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { collector.Close() })
	p := h.start(t, fmt.Sprintf(`version: 1
flow-export: {collector: "%v", active: 1s, inactive: 1s}
device: {type: tun, interfaces: [e1, e2]}
admin: {socket: SOCKET}
state: {file: DIR/state, every: 1s}
farms:
  tls:
    metric: roundrobin
    mode: server-per-session
    check: {method: ssl, interval: 200ms, timeout: 10s}
    nodes:
      - {name: s1, address: "10.9.1.2:8443"}
      - {name: s2, address: "10.9.2.2:8443"}
  web:
    metric: roundrobin
    mode: server-per-session
    nodes:
      - {name: s1, address: "10.9.1.2:8080"}
      - {name: s2, address: "10.9.2.2:8080"}
services:
  - name: tls
    vip: 10.9.100.1
    protocol: tcp
    port: 443
    farm: tls
    delay: {read: tls, tls-persistence: {idle: 5m}}
  - name: http
    vip: 10.9.100.1
    protocol: tcp
    port: 80
    farm: web
    export-flows: true
    delay:
      read: http
      rules:
        - {when: path-prefix, is: /old, redirect: "http://10.9.100.1/"}
        - {when: path, is: /gone, reply: 410}
        - {when: path-prefix, is: /beta, and: {when: cookie, key: group, is: test*}, reply: 418}
        - {when: text, is: "X-Odd: yes", in: head, and: {when: header, key: User-Agent, is: "curl/*"}, reply: 451}
`, collector.LocalAddr()))
	p.ready()
	for range 3 {
		var out []byte
		require.NoError(t, h.client.Do(func() (err error) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, openssl, "s_client", "-connect", "10.9.100.1:443", "-reconnect", "-no_ticket", "-tls1_2")
			cmd.WaitDelay = time.Second
			out, err = cmd.CombinedOutput()
			return err
		}), "%s", out)
		require.Equal(t, 5, strings.Count(string(out), "\nReused, "), "%s", out)
		p.must("reload") // what was learned outlives it
	}
	nodes := p.status().Farms[0].Nodes
	require.Positive(t, nodes[0].Traffic.Sessions, "both have served")
	require.Positive(t, nodes[1].Traffic.Sessions, "both have served")

	var body string
	body, err = h.get("10.9.100.1")
	require.NoError(t, err)
	require.Contains(t, body, "server ")
	for request, want := range map[string]string{
		"/gone": "410", "/old/page": "302", "/beta": "200", "/ --cookie group=test7": "200", "/beta --cookie group=other": "200", "/beta/x --cookie a=b;group=test7": "418",
		"/ --header X-Odd:~yes": "451", "/ --header X-Odd:~yes --user-agent other": "200",
	} {
		var out []byte
		require.NoError(t, h.client.Do(func() (err error) {
			args := strings.Fields(request)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "~", " ")
			}
			args[0] = "http://10.9.100.1" + args[0]
			out, err = exec.Command("curl", append([]string{"-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"}, args...)...).Output()
			return err
		}))
		require.Equal(t, want, string(out), request)
	}

	// The flows of the web service are told about, in IPFIX.
	require.NoError(t, collector.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 65535)
	n, _, err := collector.ReadFrom(b)
	require.NoError(t, err)
	require.Greater(t, n, 16)
	require.Equal(t, []byte{0, 10}, b[:2], "version of IPFIX")
	p.eventually("it is counted", func() bool { return p.status().Flows.Reported > 0 })
	p.resumed(t, openssl, filepath.Join(dir, "session"))
}

// resumed has a client resume one session over restarts: in good order, and after a kill.
func (p *process) resumed(t *testing.T, openssl, session string) {
	t.Helper()
	client := func(args ...string) (out string) {
		require.NoError(t, p.h.client.Do(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, openssl, append([]string{"s_client", "-connect", "10.9.100.1:443", "-no_ticket", "-tls1_2"}, args...)...)
			b, err := cmd.CombinedOutput()
			out = string(b)
			return err
		}), "%s", out)
		return out
	}
	require.Contains(t, client("-sess_out", session), "\nNew, ")
	// Servers take turns for clients that nothing is known of: of four connections, two would meet the wrong one.
	for range 4 {
		require.Contains(t, client("-sess_in", session), "\nReused, ")
	}
	for _, end := range []func(){p.stop, p.kill} {
		before := p.status().Now
		p.eventually("the state is saved", func() bool { return p.savedSince(before) })
		end()
		p.run()
		p.ready()
		for range 4 {
			require.Contains(t, client("-sess_in", session), "\nReused, ")
		}
	}
	require.Contains(t, p.log.String(), "TLS sessions restored")
}
