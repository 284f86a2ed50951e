package l7

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeadsAccepted(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		check    func(t *testing.T, h Head)
	}{
		{"plain", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", func(t *testing.T, h Head) {
			require.Equal(t, "GET", string(h.Method))
			require.Equal(t, "a", string(h.Host))
			require.False(t, h.Close)
		}},
		{"empty lines before", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"LF alone", "GET / HTTP/1.1\nHost: a\nX: y\n\n", nil},
		{"HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", func(t *testing.T, h Head) { require.True(t, h.Close) }},
		{"HTTP/1.0 kept alive", "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", func(t *testing.T, h Head) { require.False(t, h.Close) }},
		{"close", "GET / HTTP/1.1\r\nHost: a\r\nConnection: foo, Close\r\n\r\n", func(t *testing.T, h Head) { require.True(t, h.Close) }},
		{"upgrade", "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", func(t *testing.T, h Head) { require.True(t, h.Upgrade) }},
		{"a length with zeros before", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\n", func(t *testing.T, h Head) { require.EqualValues(t, 5, h.ContentLength) }},
		{"upgrade without a protocol", "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n", func(t *testing.T, h Head) { require.False(t, h.Upgrade) }},
		{"upgrade not in Connection", "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", func(t *testing.T, h Head) { require.False(t, h.Upgrade) }},
		{"upgrade in HTTP/1.0", "GET / HTTP/1.0\r\nConnection: upgrade, keep-alive\r\nUpgrade: x\r\n\r\n", func(t *testing.T, h Head) { require.False(t, h.Upgrade || h.Close) }},
		{"a host with everything", "GET / HTTP/1.1\r\nHost: WWW.Example.COM.:080\r\n\r\n", func(t *testing.T, h Head) { require.Equal(t, "WWW.Example.COM", string(hostName(h.Host))) }},
		{"chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n", func(t *testing.T, h Head) { require.EqualValues(t, -1, h.ContentLength) }},
		{"absolute", "GET HTTP://a:80/x?y=z?? HTTP/1.1\r\nHost: A\r\n\r\n", func(t *testing.T, h Head) {
			require.Equal(t, "a:80 /x y=z??", string(h.Host)+" "+string(h.Path)+" "+string(h.Query))
		}},
		{"absolute with an empty Host", "GET http://a/ HTTP/1.1\r\nHost:\r\n\r\n", func(t *testing.T, h Head) { require.Equal(t, "a", string(h.Host)) }},
		{"white space around values", "GET / HTTP/1.1\r\nHost: a\r\nX:\t a b \t\r\nY:\r\n\r\n", func(t *testing.T, h Head) {
			require.Equal(t, "a b", string(h.Fields[1].Value))
			require.Empty(t, h.Fields[2].Value)
		}},
		{"bytes above ASCII in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: \xff\xfe\r\n\r\n", nil},
		{"CONNECT", "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n", func(t *testing.T, h Head) { require.True(t, h.Upgrade) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const rest = "rest"
			h, n, err := ParseHead([]byte(tt.in + rest))
			require.NoError(t, err)
			require.Equal(t, len(tt.in), n)
			if tt.check != nil {
				tt.check(t, h)
			}
			for i := range tt.in {
				_, _, err := ParseHead([]byte(tt.in[:i]))
				require.ErrorIs(t, err, ErrShort, "%q", tt.in[:i])
			}
		})
	}
}

func TestHeadsRefused(t *testing.T) {
	host := func(line string) string { return "POST / HTTP/1.1\r\nHost: a\r\n" + line + "\r\n\r\n" }
	for name, in := range map[string]string{
		"two lengths":                      host("Content-Length: 5\r\nContent-Length: 6"),
		"the same length twice":            host("Content-Length: 5\r\nContent-Length: 5"),
		"the same length written apart":    host("Content-Length: 5\r\nContent-Length: 05"),
		"length with an underscore":        host("Content_Length: 5"),
		"encoding with an underscore":      host("Transfer_Encoding: chunked"),
		"length named by Connection":       host("Connection: close, Content-Length\r\nContent-Length: 5"),
		"Host named by Connection":         host("Connection: host"),
		"encoding named by Connection":     host("Connection: transfer-encoding, keep-alive\r\nTransfer-Encoding: chunked"),
		"two encodings in other cases":     host("Transfer-Encoding: chunked\r\nTransfer-encoding: cow"),
		"encoding identity":                host("Transfer-Encoding: identity"),
		"encoding with a comma":            host("Transfer-Encoding: chunked,"),
		"encoding in quotes":               host("Transfer-Encoding: \"chunked\""),
		"encoding behind a bare CR":        host("X: y\rTransfer-Encoding: chunked"),
		"encoding behind a bare LF":        host("X: y\nTransfer-Encoding: chunked"),
		"encoding with a space first":      host(" Transfer-Encoding: chunked"),
		"encoding with a space last":       host("Transfer-Encoding : chunked"),
		"encoding that is empty":           host("Transfer-Encoding:"),
		"empty encoding and length":        host("Transfer-Encoding:\r\nContent-Length: 3"),
		"a length with a space within":     host("Content-Length: 1 2"),
		"a length with a NUL":              host("Content-Length: 5\x00"),
		"a length with an underscore":      host("Content-Length: 1_0"),
		"CR CR LF":                         host("X: y\r"),
		"NUL in the target":                "GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/0.9":                         "GET /\r\n\r\n",
		"target that is a scheme":          "GET http: HTTP/1.1\r\nHost: a\r\n\r\n",
		"target with an empty port's user": "GET http://a@b:80/ HTTP/1.1\r\nHost: b\r\n\r\n",
		"Host with two ports":              "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n",
		"CONNECT with a path":              "CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT for another host":         "CONNECT a:1 HTTP/1.1\r\nHost: b:1\r\n\r\n",
		"CONNECT with chunks":              "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"a list of lengths":                host("Content-Length: 5, 5"),
		"a length with a sign":             host("Content-Length: +5"),
		"a negative length":                host("Content-Length: -1"),
		"a length in hexadecimal":          host("Content-Length: 0x5"),
		"an empty length":                  host("Content-Length:"),
		"a length beyond bounds":           host("Content-Length: 9999999999999999999"),
		"length and encoding":              host("Content-Length: 5\r\nTransfer-Encoding: chunked"),
		"encoding and length":              host("Transfer-Encoding: chunked\r\nContent-Length: 5"),
		"two encodings":                    host("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
		"encoding list":                    host("Transfer-Encoding: gzip, chunked"),
		"unknown encoding":                 host("Transfer-Encoding: xchunked"),
		"encoding with a parameter":        host("Transfer-Encoding: chunked;a=b"),
		"encoding with a vertical tab":     host("Transfer-Encoding: \x0bchunked"),
		"encoding in HTTP/1.0":             "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
		"folded field":                     host("X: a\r\n b"),
		"folded with a tab":                host("X: a\r\n\tb"),
		"fold before the first field":      "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
		"bare CR in a value":               host("X: a\rContent-Length: 5"),
		"bare CR in the request line":      "GET /\r HTTP/1.1\r\nHost: a\r\n\r\n",
		"NUL":                              host("X: a\x00b"),
		"space before the colon":           host("Content-Length : 5"),
		"no colon":                         host("Content-Length 5"),
		"empty name":                       host(": x"),
		"name with a control character":    host("X\x01: y"),
		"mixed line ends":                  "GET / HTTP/1.1\r\nHost: a\n\r\n",
		"no Host":                          "GET / HTTP/1.1\r\n\r\n",
		"two Hosts":                        host("Host: a"),
		"Host list":                        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
		"Host with a path":                 "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
		"Host with a user":                 "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
		"Host with a bad port":             "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
		"Host with a space":                "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
		"Host is only a port":              "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
		"bad bracket":                      "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
		"bracket and more":                 "GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n",
		"target and Host differ":           "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
		"target and Host differ in ports":  "GET http://a:1/ HTTP/1.1\r\nHost: a:2\r\n\r\n",
		"target with a user":               "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"target with no host":              "GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n",
		"target is relative":               "GET x HTTP/1.1\r\nHost: a\r\n\r\n",
		"target has a fragment":            "GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n",
		"target has a backslash":           "GET /x\\y HTTP/1.1\r\nHost: a\r\n\r\n",
		"star for GET":                     "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
		"two spaces":                       "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"space in the target":              "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
		"tab for a space":                  "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"no version":                       "GET /\r\nHost: a\r\n\r\n",
		"HTTP/2 preface":                   "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/1.2":                         "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
		"lower case version":               "GET / http/1.1\r\nHost: a\r\n\r\n",
		"CONNECT with a body":              "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 1\r\n\r\n",
		"five empty lines":                 "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"too many fields":                  host(strings.Repeat("X: y\r\n", 300) + "Z: z"),
		"TLS":                              "\x16\x03\x01\x02\x00\x01\x00\x01",
		"SSH":                              "SSH-2.0-OpenSSH_9.9\r\n",
		"binary":                           "\x00\x00\x00\x00",
		"a method without end":             strings.Repeat("A", 70),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := ParseHead([]byte(in))
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrShort)
			// However it is cut, it is refused for the same reason.
			var p parser
			for i := range len(in) + 1 {
				if got := p.feed([]byte(in[:i])); got != nil {
					require.ErrorIs(t, got, err)
					return
				}
				require.False(t, p.done)
			}
			t.Fatal("accepted in pieces")
		})
	}
}

func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST http://a/b?c HTTP/1.0\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc",
		"POST / HTTP/1.1\nHost: [::1]:80\nTransfer-Encoding: chunked\nX: \ty\n\n1\r\na\r\n0\r\n\r\n",
		"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost:\r\nConnection: a,close\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := ParseHead(b)
		// In pieces the answer is the same.
		var p parser
		var piecesErr error
		for i := 0; i <= len(b) && !p.done && piecesErr == nil; i++ {
			piecesErr = p.feed(b[:i])
		}
		switch {
		case err == nil:
			require.True(t, p.done)
			require.Equal(t, n, p.pos)
		case errors.Is(err, ErrShort):
			require.NoError(t, piecesErr)
			require.False(t, p.done)
		default:
			require.Error(t, piecesErr)
		}
		if err != nil {
			return
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		require.Equal(t, req.Method, string(h.Method))
		require.Equal(t, req.RequestURI, string(h.Target))
		require.Equal(t, strings.ToLower(req.Host), strings.ToLower(string(h.Host)))
		require.Equal(t, req.ContentLength, h.ContentLength)
		require.Equal(t, len(req.TransferEncoding) == 1, h.Chunked)
		require.Equal(t, req.Close, h.Close)
		require.Equal(t, req.ProtoMinor, int(h.Minor))
		got := make(http.Header)
		for _, f := range h.Fields {
			if name := string(f.Name); !strings.EqualFold(name, "host") && !strings.EqualFold(name, "transfer-encoding") {
				got.Add(name, string(f.Value))
			}
		}
		if v := got["Content-Length"]; len(v) > 1 { // net/http makes one of several
			got["Content-Length"] = v[:1]
		}
		want := req.Header.Clone()
		for name := range req.Trailer {
			require.NotEmpty(t, name)
		}
		if len(req.Trailer) > 0 {
			want["Trailer"] = got["Trailer"] // net/http takes it out
		}
		if got.Get("Pragma") == "no-cache" && got["Cache-Control"] == nil {
			delete(want, "Cache-Control") // net/http adds it
		}
		require.Equal(t, want, got)
	})
}
