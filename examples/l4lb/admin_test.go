package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func TestGuard(t *testing.T) {
	s := &adminServer{log: slog.New(slog.DiscardHandler)}
	s.conf.Store(&admin{Names: []string{"lb1.example.net"}})
	s.secrets.Store(&secrets{token: sha256.Sum256([]byte("0123456789abcdef"))})
	inner := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "in") })
	type headers map[string]string
	const token, wrong = "Bearer 0123456789abcdef", "Bearer 0123456789abcdeg"
	for _, c := range []struct {
		name, method, host, path string
		tcp                      bool
		h                        headers
		want                     int
	}{
		{"socket", "GET", "l4lb", "/api/v1/status", false, nil, 200},
		{"socket through a tunnel", "GET", "localhost:8080", "/api/v1/status", false, nil, 200},
		{"socket, IPv6 tunnel", "GET", "[::1]:8080", "/", false, nil, 200},
		{"socket, rebound name", "GET", "evil.example", "/api/v1/status", false, nil, 403},
		{"socket, address of somebody", "GET", "192.0.2.1", "/api/v1/status", false, nil, 403},
		{"socket, own page", "GET", "localhost:8080", "/api/v1/status", false, headers{"Sec-Fetch-Site": "same-origin"}, 200},
		{"socket, other page reads", "GET", "localhost:8080", "/api/v1/status", false, headers{"Sec-Fetch-Site": "cross-site"}, 403},
		{"socket, sibling site reads", "GET", "localhost:8080", "/api/v1/status", false, headers{"Sec-Fetch-Site": "same-site"}, 403},
		{"socket, other page posts", "POST", "localhost:8080", "/api/v1/reload", false, headers{"Origin": "https://evil.example", "Content-Type": "application/json"}, 403},
		{"socket, page of no origin posts", "POST", "localhost:8080", "/api/v1/reload", false, headers{"Origin": "null", "Content-Type": "application/json"}, 403},
		{"socket, page of another port posts", "POST", "localhost:8080", "/api/v1/reload", false, headers{"Origin": "http://localhost:8081", "Content-Type": "application/json"}, 403},
		{"socket, own page posts", "POST", "localhost:8080", "/api/v1/reload", false, headers{"Origin": "http://localhost:8080", "Content-Type": "application/json; charset=utf-8"}, 200},
		{"socket, a form", "POST", "localhost:8080", "/api/v1/reload", false, headers{"Content-Type": "application/x-www-form-urlencoded"}, 415},
		{"socket, plain text", "PUT", "l4lb", "/api/v1/drain", false, headers{"Content-Type": "text/plain"}, 415},
		{"socket, no type", "DELETE", "l4lb", "/api/v1/sessions", false, nil, 415},
		{"link from another site to the page", "GET", "lb1.example.net:9443", "/", true, headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		{"link from another site to the API", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Authorization": token}, 403},
		{"frame in another site", "GET", "lb1.example.net:9443", "/", true, headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403},
		{"tcp, no token", "GET", "lb1.example.net:9443", "/api/v1/status", true, nil, 401},
		{"tcp, no token, metrics", "GET", "lb1.example.net:9443", "/metrics", true, nil, 401},
		{"tcp, no token, profiles", "GET", "lb1.example.net:9443", "/debug/pprof/", true, nil, 401},
		{"tcp, no token, health", "GET", "lb1.example.net:9443", "/healthz", true, nil, 401},
		{"tcp, no token, page", "GET", "lb1.example.net:9443", "/page.js", true, nil, 200},
		{"tcp, no token, path of a page and more", "GET", "lb1.example.net:9443", "/page.js/../api/v1/status", true, nil, 401},
		{"tcp, wrong token", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Authorization": wrong}, 401},
		{"tcp, longer token", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Authorization": token + "0"}, 401},
		{"tcp, empty token", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Authorization": "Bearer "}, 401},
		{"tcp, token in another scheme", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Authorization": "Basic 0123456789abcdef"}, 401},
		{"tcp, bare token", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Authorization": "0123456789abcdef"}, 401},
		{"tcp, token", "GET", "lb1.example.net:9443", "/api/v1/status", true, headers{"Authorization": token}, 200},
		{"tcp, token by address", "GET", "192.0.2.1:9443", "/api/v1/status", true, headers{"Authorization": token}, 200},
		{"tcp, token, rebound name", "GET", "evil.example:9443", "/api/v1/status", true, headers{"Authorization": token}, 403},
		{"tcp, token, other page", "PUT", "lb1.example.net:9443", "/api/v1/drain", true, headers{"Authorization": token, "Origin": "https://evil.example", "Content-Type": "application/json"}, 403},
		{"tcp, token, own page", "PUT", "lb1.example.net:9443", "/api/v1/drain", true, headers{"Authorization": token, "Origin": "https://lb1.example.net:9443", "Content-Type": "application/json"}, 200},
		{"tcp, token, own name without TLS", "PUT", "lb1.example.net:9443", "/api/v1/drain", true, headers{"Authorization": token, "Origin": "http://lb1.example.net:9443", "Content-Type": "application/json"}, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, "http://"+c.host+c.path, strings.NewReader("{}"))
			for k, v := range c.h {
				r.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			s.guard(inner, c.tcp).ServeHTTP(w, r)
			require.Equal(t, c.want, w.Code, "%s", w.Body)
			require.Equal(t, "DENY", w.Header().Get("X-Frame-Options"))
			require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			require.NotContains(t, w.Header(), "Access-Control-Allow-Origin")
		})
	}
}

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	selfSigned(t, cert, key)
	for _, c := range []struct{ token, want string }{
		{"short", "at least 16 characters"}, {"two words that are long", "at least 16 characters"}, {"", "at least 16"}, {"0123456789abcdef\n", ""},
	} {
		file := filepath.Join(dir, "token")
		require.NoError(t, os.WriteFile(file, []byte(c.token), 0o600))
		_, err := admin{Certificate: cert, Key: key, TokenFile: file}.readSecrets()
		if c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
	_, err := admin{Certificate: key, Key: cert, TokenFile: "x"}.readSecrets()
	require.ErrorContains(t, err, "certificate and key")
}

// The socket is its owner's alone, takes the place of a dead one, and never that of a living one.
func TestListenUnix(t *testing.T) {
	path := filepath.Join(testenv.SocketDir(t), "sub", "s")
	l, err := listenUnix(path)
	require.NoError(t, err)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	_, err = listenUnix(path)
	require.ErrorContains(t, err, "another instance listens on it")
	l.Close()
	l, err = listenUnix(path)
	require.NoError(t, err, "nobody listens any more")
	l.Close()
	// What is no socket is not taken for one.
	file := filepath.Join(t.TempDir(), "l4lb.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1"), 0o600))
	for _, path := range []string{file, filepath.Dir(file)} {
		_, err = listenUnix(path)
		require.ErrorContains(t, err, path+": there is something else, which is left alone")
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "version: 1", string(text))
}

// TestSocketUntilTheEnd: who ends, and still has something to undo, is told from who has ended; and the socket of the next one stays.
func TestSocketUntilTheEnd(t *testing.T) {
	path := filepath.Join(testenv.SocketDir(t), "s")
	began, end := make(chan struct{}), make(chan struct{})
	s, err := openAdmin(admin{Socket: path}, slog.New(slog.DiscardHandler), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done() // a trace, such as it is
	}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(end)
		assert.NoError(t, s.run(ctx))
	}()
	cl := &client{socket: path}
	called := make(chan error)
	go func() { called <- cl.call(t.Context(), http.MethodGet, "/api/v1/trace", nil, nil) }()
	<-began
	cancel()
	<-end
	<-called
	_, err = listenUnix(path)
	require.ErrorContains(t, err, "another instance listens on it; fix: stop that one and wait for its end")
	s.close()
	require.NoFileExists(t, path)
	l, err := listenUnix(path)
	require.NoError(t, err)
	l.Close()
}

// TestSlowBody: nobody keeps a connection by a body that never ends, least of all who is refused.
func TestSlowBody(t *testing.T) {
	path := filepath.Join(testenv.SocketDir(t), "s")
	s, err := openAdmin(admin{Socket: path}, slog.New(slog.DiscardHandler), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v any
		assert.Error(t, readJSON(r, &v))
		replyError(w, http.StatusBadRequest, errors.New("x"))
	}))
	require.NoError(t, err)
	defer s.close()
	s.bodies = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.run(ctx) }()
	for _, host := range []string{"l4lb", "elsewhere.example"} {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		_, err = fmt.Fprintf(c, "PUT /api/v1/drain HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{", host)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, err = io.Copy(io.Discard, c)
		require.NoError(t, err, "it is still open")
		c.Close()
	}
}

func TestOpenAPIOfStreams(t *testing.T) {
	paths := openAPI()["paths"].(map[string]any)
	for path, want := range map[string]string{"/api/v1/status": "application/json", "/api/v1/trace": "application/x-ndjson", "/api/v1/capture": "application/x-pcapng"} {
		done := paths[path].(map[string]any)["get"].(map[string]any)["responses"].(map[string]any)["200"].(map[string]any)["content"].(map[string]any)
		require.Len(t, done, 1, path)
		require.Contains(t, done, want, path)
	}
}

// TestQueries: a filter that is mistyped is not one that takes more.
func TestQueries(t *testing.T) {
	handler := (&instance{}).handler()
	for _, c := range []struct{ method, path, want string }{
		{"DELETE", "/api/v1/sessions?service=web&nodee=a", `query: "nodee": unknown; did you mean node?`},
		{"DELETE", "/api/v1/sessions?service=web&state=up", `query: "state": unknown; known are service, node, client, vip, protocol, all`},
		{"DELETE", "/api/v1/sessions?node=a&node=b", "node: given 2 times: want it once"},
		{"DELETE", "/api/v1/sessions?service=web&node=%zz", `query: invalid URL escape "%zz"`},
		{"DELETE", "/api/v1/sessions?service=web;node=a", "query: invalid semicolon separator in query"},
		{"DELETE", "/api/v1/sessions?client=10.0.0.1/33", `client: "10.0.0.1/33": want an address, a network, or an address and port`},
		{"DELETE", "/api/v1/sessions?all=yes", "want a filter, or all=1 for all sessions"},
		{"GET", "/api/v1/trace?dropped=yes", `dropped: "yes": want 1 or 0`},
		{"GET", "/api/v1/explain?src=192.0.2.1:1&dest=192.0.2.2:2", `query: "dest": unknown; did you mean dst?`},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		require.Equal(t, http.StatusBadRequest, w.Code, c.path)
		var e errorReply
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &e))
		require.Equal(t, c.want, e.Error)
	}
}
