package probe_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// answer is a server that takes a request head, answers, and waits.
func answer(reply string) func(*peer) {
	return func(p *peer) {
		for p.hear() != "" {
		}
		p.say(reply)
		p.drain()
	}
}

// answerAndClose closes after its answer.
func answerAndClose(reply string) func(*peer) {
	return func(p *peer) {
		for p.hear() != "" {
		}
		p.say(reply)
	}
}

func httpWith(h probe.HTTP) func(memory) healthcheck.Prober {
	return func(d memory) healthcheck.Prober { h.Dialer = d; return h }
}

func TestHTTP(t *testing.T) {
	zero := httpWith(probe.HTTP{})
	teapot := httpWith(probe.HTTP{Ranges: []probe.StatusRange{{First: 418}}})
	testConversations(t, []conversation{
		{name: "200", prober: zero, serve: answer("HTTP/1.1 200 OK\r\n\r\n"), want: healthcheck.Pass},
		{name: "299", prober: zero, serve: answer("HTTP/1.1 299 \r\n\r\n"), want: healthcheck.Pass},
		{name: "401", prober: zero, serve: answer("HTTP/1.0 401 Who\r\n\r\n"), want: healthcheck.Pass},
		{name: "no reason", prober: zero, serve: answer("HTTP/1.1 204\r\n\r\n"), want: healthcheck.Pass},
		{name: "bare LF", prober: zero, serve: answer("HTTP/1.1 200 OK\nA: b\n\n"), want: healthcheck.Pass},
		{name: "HEAD with Content-Length and no body", prober: zero, serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"), want: healthcheck.Pass},
		{name: "103 then 200", prober: zero, serve: answer("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), want: healthcheck.Pass},
		{name: "100 unasked then 200", prober: zero, serve: answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), want: healthcheck.Pass},
		{name: "103 then 503", prober: zero, serve: answer("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 No\r\n\r\n"), want: healthcheck.Fail, err: `http: reply: got "HTTP/1.1 503 No", want status 200-299, 401`},
		{name: "101 unasked", prober: zero, serve: answer("HTTP/1.1 101 Switching\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), want: healthcheck.Fail, err: "want no change of protocol"},
		{name: "1xx for ever", prober: zero, serve: answer(strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 40)), want: healthcheck.Fail, err: "final status"},
		{name: "404", prober: zero, serve: answer("HTTP/1.1 404 Not Found\r\n\r\n"), want: healthcheck.Fail, err: `got "HTTP/1.1 404 Not Found"`},
		{name: "302", prober: zero, serve: answer("HTTP/1.1 302 Found\r\n\r\n"), want: healthcheck.Fail, err: "302"},
		{name: "404 fail fast", prober: httpWith(probe.HTTP{FailFast: true}), serve: answer("HTTP/1.1 404 Not Found\r\n\r\n"), want: healthcheck.Fail, err: "404", final: true},
		{name: "silence is not final", prober: httpWith(probe.HTTP{FailFast: true}), serve: answer(""), want: healthcheck.Fail, err: "http: reply: timed out without an answer"},
		{name: "range", prober: teapot, serve: answer("HTTP/1.1 418 I\r\n\r\n"), want: healthcheck.Pass},
		{name: "ranges replace the default", prober: teapot, serve: answer("HTTP/1.1 200 I\r\n\r\n"), want: healthcheck.Fail, err: "want status 418"},
		{name: "closed", prober: zero, serve: answerAndClose(""), want: healthcheck.Fail, err: "http: reply: connection closed without an answer"},
		{name: "cut", prober: zero, serve: answerAndClose("HTTP/1.1 2"), want: healthcheck.Fail, err: `connection closed after "HTTP/1.1 2"`},
		{name: "head cut", prober: zero, serve: answer("HTTP/1.1 200 OK\r\nServer: x"), want: healthcheck.Fail, err: `timed out after "Server: x"`},
		{name: "four digits", prober: zero, serve: answer("HTTP/1.1 2000 OK\r\n\r\n"), want: healthcheck.Fail, err: "want a status line"},
		{name: "two digits", prober: zero, serve: answer("HTTP/1.1 20 OK\r\n\r\n"), want: healthcheck.Fail, err: "want a status line"},
		{name: "other protocol", prober: zero, serve: answer("SSH-2.0-x\r\n\r\n"), want: healthcheck.Fail, err: `got "SSH-2.0-x", want a status line`},
		{name: "endless head", prober: zero, serve: answer("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 20000)), want: healthcheck.Fail, err: "reply too long"},
		{name: "endless line", prober: zero, serve: answer(strings.Repeat("a", 200000)), want: healthcheck.Fail, err: "reply too long"},
	})
}

func TestHTTPRequest(t *testing.T) {
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			got := make(chan *http.Request, 1)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got <- r
				w.WriteHeader(http.StatusNoContent)
			}))
			l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skip(err)
			}
			s.Listener.Close()
			s.Listener = l
			s.Start()
			defer s.Close()
			addr := netip.MustParseAddrPort(l.Addr().String())

			res := probe.HTTP{}.Probe(t.Context(), addr)
			require.NoError(t, res.Err)
			r := <-got
			require.Equal(t, "HEAD", r.Method)
			require.Equal(t, "/", r.RequestURI)
			require.Equal(t, addr.String(), r.Host)

			res = probe.HTTP{Method: "POST", Path: "/x?y=1", Host: "www.example.com", Body: "hi",
				Header: http.Header{"X-Test": {"a", "b"}}}.Probe(t.Context(), addr)
			require.NoError(t, res.Err)
			r = <-got
			require.Equal(t, "/x?y=1", r.RequestURI)
			require.Equal(t, "www.example.com", r.Host)
			require.Equal(t, []string{"a", "b"}, r.Header["X-Test"])
			require.EqualValues(t, 2, r.ContentLength)
		})
	}
}

func TestHTTPValidate(t *testing.T) {
	require.NoError(t, probe.HTTP{}.Validate())
	err := probe.HTTP{
		Method: "HE AD", Path: "x", Host: "a b", Header: http.Header{"host": {"x"}, "A": {"b\r\nc"}},
		Ranges: []probe.StatusRange{{First: 100}, {First: 300, Last: 200}, {}, {}, {}},
	}.Validate()
	for _, want := range []string{"Method", "Path", "Host", "Header", "Ranges: got 5", `"100"`, `"300-200"`} {
		require.ErrorContains(t, err, want)
	}
}

// TestHTTPUserAgent: a field of the caller's replaces the prober's, however it is written.
func TestHTTPUserAgent(t *testing.T) {
	got := make(chan []string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header["User-Agent"] }))
	defer s.Close()
	addr := netip.MustParseAddrPort(s.Listener.Addr().String())
	for want, h := range map[string]http.Header{"lbprim-healthcheck": nil, "mine": {"user-agent": {"mine"}}} {
		res := probe.HTTP{Header: h}.Probe(within(t, patience), addr)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.Equal(t, []string{want}, <-got)
	}
}
