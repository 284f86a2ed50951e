package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
)

// TestCommands uses every command on one running balancer.
func TestCommands(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	text := strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "{socket: none}", "{socket: SOCKET}\nstate: {file: DIR/state}", 1)
	p := h.start(t, text)
	p.ready()
	for range 10 {
		_, err := h.get("10.9.100.1")
		require.NoError(t, err)
	}
	require.Contains(t, p.must("check", p.file), "right: 2 services, 2 farms, 4 nodes")

	out := p.must("status")
	require.Regexp(t, `web4 +10.9.100.1 tcp/80 +v4 +2/2`, out)
	require.Regexp(t, `v4/s1 +available +50 % +50 %`, out)
	require.Contains(t, out, "l4lb: ready, up ")
	require.Equal(t, "v4/s1\nv4/s2\nv6/s1\nv6/s2\n", p.must("status", "-names"))
	var s statusReply
	require.NoError(t, json.Unmarshal([]byte(p.must("status", "-json")), &s))
	require.EqualValues(t, 10, s.Services[0].Traffic.Sessions)
	require.Contains(t, p.must("top", "-n", "2", "-every", "200ms"), "rates of the last round")

	require.Contains(t, p.must("explain", "-src", "10.9.0.2:4000", "-dst", "10.9.100.1:80"), "v4/s")
	require.Contains(t, p.must("explain", "-src", "10.9.0.2:4000", "-dst", "10.9.100.1:81"), "no-policy")

	p.top(t)
	p.completes(t)

	// Nodes: by short names where there is no doubt, and over a reload.
	out, err := p.l4lb("drain", "s1")
	require.Error(t, err)
	require.Contains(t, out, "several farms have a node \"s1\": want one of v4/s1, v6/s1")
	out, err = p.l4lb("drain", "s9")
	require.Error(t, err)
	require.Contains(t, out, `there is no node "s9": want one of v4/s1, v4/s2, `)
	require.Contains(t, p.must("drain", "v4/s1"), "v4/s1: draining")
	require.Contains(t, p.must("reload"), "reloaded")
	for range 4 {
		body, err := h.get("10.9.100.1")
		require.NoError(t, err)
		require.Equal(t, "server 2", body)
	}
	require.Contains(t, p.must("status"), "asked over the admin interface")
	require.Contains(t, p.must("enable", "v4/s1"), "v4/s1: available")
	require.Contains(t, p.must("disable", "v4/s2"), "v4/s2: disabled")
	body, err := h.get("10.9.100.1")
	require.NoError(t, err)
	require.Equal(t, "server 1", body)
	p.must("enable", "v4/s2")

	// Sessions: a stream that is ended under the client's eyes.
	stream := h.stream(t, "10.9.100.1")
	stream.tick(t)
	out = p.must("sessions", "-vip", "10.9.100.1:80", "-service", "web4")
	require.Regexp(t, `tcp +10.9.0.2:\d+ +10.9.100.1:80 +v4/s\d`, out)
	count, err := strconv.Atoi(strings.TrimSpace(p.must("sessions", "-count")))
	require.NoError(t, err)
	require.Positive(t, count)
	require.Equal(t, "0\n", p.must("sessions", "-count", "-client", "192.0.2.0/24"))
	_, err = p.l4lb("sessions", "-kill")
	require.Error(t, err, "no filter")
	// Packets: of the stream, while it goes on.
	file := filepath.Join(t.TempDir(), "x.pcapng")
	p.must("capture", "-n", "5", "-vip", "10.9.100.1:80", "-w", file)
	captured, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "\x0a\x0d\x0d\x0a", string(captured[:4]), "the magic number of pcapng")
	require.Contains(t, string(captured), "forwarded", "comments")
	require.Contains(t, p.must("trace", "-n", "2", "-service", "web4"), "web4")
	out, err = p.l4lb("trace", "-reason", "boredom")
	require.Error(t, err)
	require.Contains(t, out, "reason")
	require.Contains(t, p.must("sessions", "-kill", "-client", "10.9.0.0/24"), "sessions ended")
	stream.ends(t)
	require.Contains(t, p.must("sessions", "-kill", "-all"), "sessions ended")

	// What a reload would change, and what it refuses.
	other := filepath.Join(t.TempDir(), "new.yaml")
	now, err := os.ReadFile(p.file)
	require.NoError(t, err)
	require.Equal(t, "nothing changes\n", p.must("diff", p.file, p.file))
	require.NoError(t, os.WriteFile(other, []byte(strings.Replace(string(now), `{name: s1, address: "10.9.1.2:8080"}`, `{name: s3, address: "10.9.1.2:8080", weight: 5}`, 1)), 0o600))
	out = p.must("diff", p.file, other)
	require.Contains(t, out, "- farms.v4.nodes[s1].address: 10.9.1.2:8080\n")
	require.Contains(t, out, "+ farms.v4.nodes[s3].weight: 5\n")
	require.Contains(t, out, "note: the sessions of v4/s1 end\n")
	require.NoError(t, os.WriteFile(other, []byte(strings.Replace(string(now), "queues: 2", "queues: 1", 1)), 0o600))
	out, err = p.l4lb("diff", p.file, other)
	require.Error(t, err)
	require.Contains(t, out, "~ device.queues: 2 -> 1")
	require.Contains(t, out, "device.queues cannot change while running")
	require.Contains(t, p.must("setup", p.file), "ip route replace 10.9.100.1/32 dev lb0")

	// A virtual address more, without a restart.
	p.write(text + "  - {name: more, vip: 10.9.100.2, protocol: tcp, port: 80, farm: v4}\n")
	p.must("reload")
	_, err = h.get("10.9.100.2")
	require.NoError(t, err)
	p.write(strings.Replace(text, "version: 1", "version: 2", 1))
	out, err = p.l4lb("reload")
	require.Error(t, err)
	require.Contains(t, out, "this program knows version 1")
	require.Contains(t, p.status().Config.Error, "version 1")
	// A file that nothing is wrong with, and that cannot be put in force: nothing of it is.
	p.write(strings.Replace(text, "version: 1", "version: 1\nflow-export: {collector: \"[2001:db8::9]:4739\"}", 1) + "  - {name: extra, vip: 10.9.100.3, protocol: tcp, port: 80, farm: v4}\n")
	out, err = p.l4lb("reload")
	require.Error(t, err)
	require.Contains(t, out, "unreachable")
	require.NotContains(t, rig.Shell(t, h.balancer, "ip route"), "10.9.100.3")
	require.NotContains(t, p.must("status"), "extra")
	p.write(text)
	p.must("reload")
	p.doors(t)

	// The balancer drains, and does so after a restart, too.
	require.NoError(t, (&client{socket: p.socket}).call(t.Context(), http.MethodPut, "/api/v1/drain", drainRequest{true}, nil))
	p.stop()
	p.run()
	p.eventually("it answers", func() bool { _, err := (&client{socket: p.socket}).status(t.Context()); return err == nil })
	require.True(t, p.status().Draining)
	require.NoError(t, (&client{socket: p.socket}).call(t.Context(), http.MethodPut, "/api/v1/drain", drainRequest{}, nil))
	p.ready()
}

// doors looks behind the doors of the admin interface that are not the API's.
func (p *process) doors(t *testing.T) {
	t.Helper()
	cl := &client{socket: p.socket}
	get := func(path string) string {
		resp, err := cl.open(t.Context(), http.MethodGet, path, nil)
		require.NoError(t, err, path)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(b)
	}
	require.Contains(t, get("/healthz"), `"ok":true`)
	require.Contains(t, get("/readyz"), `"ok":true`)
	require.Contains(t, get("/debug/pprof/"), "goroutine")
	require.Contains(t, get("/"), "<title>l4lb</title>")
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(get("/openapi.json")), &doc))
	require.Contains(t, doc["paths"], "/api/v1/nodes/{farm}/{node}")
	metrics := get("/metrics")
	require.Contains(t, metrics, `l4lb_node_up{farm="v4",node="s1"} 1`)
	require.Regexp(t, `l4lb_service_sessions_total\{service="web4"\} \d`, metrics)
	for _, bad := range []struct{ method, path, want string }{
		{"GET", "/api/v1/explain?src=x&dst=y", "src \"x\": want an address and port"},
		{"GET", "/api/v1/sessions?limit=-1", "limit: \"-1\": want 0 or more"},
		{"DELETE", "/api/v1/sessions", "want a filter, or all=1"},
		{"DELETE", "/api/v1/sessions?service=web4&nodes=v4/s1", `query: "nodes": unknown; did you mean node?`},
		{"PUT", "/api/v1/nodes/v4/s9", `there is no node "v4/s9": want one of v4/s1, v4/s2, `},
		{"GET", "/nowhere", "404"},
	} {
		var body any
		if bad.method == "PUT" {
			body = wishRequest{"draining"}
		}
		err := cl.call(t.Context(), bad.method, bad.path, body, nil)
		require.ErrorContains(t, err, bad.want)
	}
	for _, body := range []any{wishRequest{"asleep"}, map[string]string{"adnim": "draining"}} {
		require.Error(t, cl.call(t.Context(), http.MethodPut, "/api/v1/nodes/v4/s1", body, nil))
	}
	drained := drainRequest{true}
	require.NoError(t, cl.call(t.Context(), http.MethodPut, "/api/v1/drain", drained, nil))
	require.ErrorContains(t, cl.call(t.Context(), http.MethodGet, "/readyz", nil, nil), "503")
	require.NoError(t, cl.call(t.Context(), http.MethodPut, "/api/v1/drain", drainRequest{}, nil))
	// The metrics themselves, by Prometheus's own rules.
	problems, err := promlint.New(strings.NewReader(metrics)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}
