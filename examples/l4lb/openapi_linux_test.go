package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// description is the OpenAPI description that a running balancer gives, and what real answers have shown of it.
type description struct {
	t        *testing.T
	doc      map[string]any
	compiler *jsonschema.Compiler
	statuses map[string]bool            // "get /path 200" that were answered
	seen     map[string]map[string]bool // properties by the name of their schema
}

func (d *description) at(keys ...string) any {
	var v any = d.doc
	for _, k := range keys {
		m, ok := v.(map[string]any)
		require.True(d.t, ok && m[k] != nil, "%q: nothing is described", keys)
		v = m[k]
	}
	return v
}

// holds wants an answer to be as described.
func (d *description) holds(method, path string, code int, contentType string, body []byte) {
	d.t.Helper()
	method = strings.ToLower(method)
	status := strconv.Itoa(code)
	media, _, err := mime.ParseMediaType(contentType)
	require.NoError(d.t, err, "%s %s: %s", method, path, contentType)
	keys := []string{"paths", path, method, "responses", status, "content", media}
	schema, described := d.at(keys...).(map[string]any)["schema"]
	d.statuses[method+" "+path+" "+status] = true
	if !described || media == "text/plain" {
		return
	}
	for i, k := range keys {
		keys[i] = strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(k)
	}
	s, err := d.compiler.Compile("openapi.json#/" + strings.Join(keys, "/") + "/schema")
	require.NoError(d.t, err)
	values := [][]byte{body}
	if media == "application/x-ndjson" {
		values = bytes.Split(bytes.TrimSpace(body), []byte("\n"))
	}
	for _, b := range values {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		require.NoError(d.t, err, "%s", b)
		require.NoError(d.t, s.Validate(v), "%s %s %s: %s", method, path, status, b)
		d.look(schema, v)
	}
}

// look notes the properties that a value has.
func (d *description) look(schema, value any) {
	s, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if ref, ok := s["$ref"].(string); ok {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		if d.seen[name] == nil {
			d.seen[name] = map[string]bool{}
		}
		s = d.at("components", "schemas", name).(map[string]any)
		for k := range value.(map[string]any) {
			d.seen[name][k] = true
		}
	}
	switch v := value.(type) {
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		for k, x := range v {
			d.look(props[k], x)
		}
	case []any:
		for _, x := range v {
			d.look(s["items"], x)
		}
	}
}

// TestOpenAPI holds the description to real answers of every operation, both ways: every answer is as described, and every path, status and property
// that is described is answered.
func TestOpenAPI(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	h.agents(t, 9999)
	dir := t.TempDir()
	cert, key, token := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), filepath.Join(dir, "token")
	selfSigned(t, cert, key)
	require.NoError(t, os.WriteFile(token, []byte(pageToken), 0o600))
	doors := fmt.Sprintf("{socket: SOCKET, listen: '127.0.0.1:9443', certificate: %s, key: %s, token-file: %s}", cert, key, token)
	text := strings.NewReplacer("  v6:\n", "  v6:\n    policy: NOT gone AND db\n", "{socket: none}", doors+"\nelements: {db: {target: '10.9.1.2:8080', interval: 200ms, timeout: 10s}, gone: {target: '10.9.1.2:9', interval: 200ms, fall: 1}}",
		"    check:", "    forward: fullnat\n    locals: [10.9.101.1]\n    agent: {port: 9999, interval: 200ms, timeout: 10s}\n    check:").Replace(fmt.Sprintf(labFile, "tun", "e1, e2"))
	p := h.start(t, text)
	p.ready()

	socket := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
	tcp := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return h.balancer.DialContext(ctx, network, "127.0.0.1:9443")
	}, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // its own test checks certificates
	type answer struct {
		code int
		kind string
		body []byte
	}
	ask := func(by *http.Client, method, path, body string, header ...string) answer {
		t.Helper()
		base := "http://l4lb"
		if by == tcp {
			base = "https://127.0.0.1"
		}
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		require.NoError(t, err)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := by.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		var b []byte
		if strings.HasPrefix(path, "/api/v1/trace") && resp.StatusCode == http.StatusOK { // it goes on until the caller leaves
			b = make([]byte, 0, 1<<16)
			for !bytes.Contains(b, []byte("\n")) {
				part := make([]byte, 1<<15)
				n, err := resp.Body.Read(part)
				require.NoError(t, err)
				b = append(b, part[:n]...)
			}
			b = b[:bytes.IndexByte(b, '\n')]
		} else if b, err = io.ReadAll(resp.Body); err != nil {
			require.NoError(t, err)
		}
		return answer{resp.StatusCode, resp.Header.Get("Content-Type"), b}
	}
	asJSON := []string{"Content-Type", "application/json"}
	described := ask(socket, "GET", "/openapi.json", "")
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(described.body))
	require.NoError(t, err)
	d := &description{t: t, doc: parsed.(map[string]any), compiler: jsonschema.NewCompiler(), statuses: map[string]bool{}, seen: map[string]map[string]bool{}}
	d.compiler.AssertFormat()
	require.NoError(t, d.compiler.AddResource("openapi.json", parsed))

	// Traffic, a drop, an open session, and a reload that was refused, for all that only then is told.
	h.traffic(t, "10.9.100.1")
	h.stream(t, "10.9.100.1").tick(t)
	c, err := h.client.DialContext(t.Context(), "udp", "10.9.100.1:81")
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	p.write(strings.Replace(text, "version: 1", "version: 9", 1))
	p.eventually("a refused reload is told", func() bool { return p.status().Config.Error != "" })
	p.eventually("a drop is told", func() bool { return len(p.status().Drops) > 0 })
	p.eventually("a failed check is told", func() bool { return p.status().Elements[1].Health.Note != "" })
	p.eventually("the agents are told of", func() bool { return p.status().Farms[0].Nodes[0].Agent != "" })

	for _, x := range []struct{ method, path, query, body string }{
		{"GET", "/api/v1/status", "", ""},
		{"GET", "/api/v1/sessions", "?client=10.9.0.0/24", ""},
		{"GET", "/api/v1/sessions", "?limit=-1", ""},
		{"DELETE", "/api/v1/sessions", "?client=192.0.2.1", ""},
		{"DELETE", "/api/v1/sessions", "", ""},
		{"PUT", "/api/v1/nodes/{farm}/{node}", "/v4/s1", `{"admin": "enabled"}`},
		{"PUT", "/api/v1/nodes/{farm}/{node}", "/v4/s1", `{"admin": "asleep"}`},
		{"PUT", "/api/v1/nodes/{farm}/{node}", "/v4/s9", `{"admin": "enabled"}`},
		{"PUT", "/api/v1/drain", "", `{"on": false}`},
		{"PUT", "/api/v1/drain", "", `{"off": true}`},
		{"GET", "/api/v1/explain", "?src=10.9.0.2:1&dst=10.9.100.1:80", ""},
		{"GET", "/api/v1/explain", "?src=10.9.0.2:1&dst=10.9.100.1:81", ""},
		{"GET", "/api/v1/explain", "?src=x", ""},
		{"GET", "/api/v1/capture", "?packets=1", ""},
		{"GET", "/api/v1/capture", "?packets=0", ""},
		{"GET", "/api/v1/trace", "?service=web4", ""},
		{"GET", "/api/v1/trace", "?reason=boredom", ""},
		{"POST", "/api/v1/reload", "", ""},
		{"GET", "/healthz", "", ""},
		{"GET", "/readyz", "", ""},
		{"GET", "/metrics", "", ""},
		{"GET", "/openapi.json", "", ""},
	} {
		path := strings.TrimSuffix(x.path, "/{farm}/{node}") + x.query
		a := ask(socket, x.method, path, x.body, asJSON...)
		d.holds(x.method, x.path, a.code, a.kind, a.body)
		// The guard's refusals.
		for _, by := range []answer{
			ask(tcp, x.method, path, x.body, asJSON...),
			ask(socket, x.method, path, x.body, append([]string{"Sec-Fetch-Site", "cross-site"}, asJSON...)...),
		} {
			d.holds(x.method, x.path, by.code, by.kind, by.body)
		}
		if x.method != "GET" {
			a = ask(socket, x.method, path, x.body)
			d.holds(x.method, x.path, a.code, a.kind, a.body)
		}
	}
	// Reloaded, and not ready.
	p.write(text)
	a := ask(socket, "POST", "/api/v1/reload", "", asJSON...)
	d.holds("POST", "/api/v1/reload", a.code, a.kind, a.body)
	p.must("drain", "v4/s1")
	ask(socket, "PUT", "/api/v1/drain", `{"on": true}`, asJSON...)
	a = ask(socket, "GET", "/readyz", "")
	d.holds("GET", "/readyz", a.code, a.kind, a.body)
	ask(socket, "PUT", "/api/v1/drain", `{"on": false}`, asJSON...) // or clients would wait
	p.must("enable", "v4/s1")

	// The other way round.
	for path, ops := range d.doc["paths"].(map[string]any) {
		for method, op := range ops.(map[string]any) {
			for code := range op.(map[string]any)["responses"].(map[string]any) {
				require.True(t, d.statuses[method+" "+path+" "+code], "%s %s: %s is described, and was not answered", method, path, code)
			}
		}
	}
	requests := []string{"wish", "drain"}
	for name, s := range d.at("components", "schemas").(map[string]any) {
		for prop := range s.(map[string]any)["properties"].(map[string]any) {
			require.True(t, d.seen[name][prop] || slices.Contains(requests, name), "%s.%s is described, and was in no answer", name, prop)
		}
	}
	// What is described of requests is what is taken: see the bodies above.
	for _, name := range requests {
		s, err := d.compiler.Compile("openapi.json#/components/schemas/" + name)
		require.NoError(t, err)
		for body, right := range map[string]bool{`{"admin": "enabled"}`: name == "wish", `{"admin": "asleep"}`: false, `{"on": false}`: name == "drain", `{"off": true}`: false} {
			var v any
			require.NoError(t, json.Unmarshal([]byte(body), &v))
			require.Equal(t, right, s.Validate(v) == nil, "%s: %s", name, body)
		}
	}
}
