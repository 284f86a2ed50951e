package l7

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	p := compile(t, &Config{Budget: 200, Default: Action{Do: Reply, Code: 404}},
		Rule{Index: 10, Name: "images", First: Method{Kind: Host, Value: "*.a"}, Second: Method{Kind: PathSuffix, Value: ".jpg"}, Action: farm("images")},
		Rule{Index: 20, First: Method{Kind: Text, Value: "x", In: InBody}, Second: Method{Kind: Header, Key: "form"}, Action: farm("form")},
		Rule{Index: 30, Name: "old", First: Method{Kind: PathPrefix, Value: "/old/"}, Action: Action{Do: Redirect, Location: "http://b/", Code: 301}},
		Rule{Index: 40, Name: "tls", First: Method{Kind: ServerName, Value: "b"}, Action: farm("tls")},
	)
	for _, tt := range []struct{ name, in, want string }{
		{"decided by the first", "GET /c.jpg HTTP/1.1\nHost: b.a\n\n", `
decided: farm "images"
  match row 10 "images": host "*.a" holds, path-suffix ".jpg" holds
  3 rows were not tried
`},
		{"decided later", "GET /old/ HTTP/1.1\nHost: b.a\n\n", `
decided: redirect "http://b/" 301
  skip  row 10 "images": host "*.a" holds, path-suffix ".jpg" fails
  skip  row 20: header form fails
  match row 30 "old": path-prefix "/old/" holds
  1 row was not tried
`},
		{"no match", "GET / HTTP/1.1\nHost: b\n\n", `
no match: reply 404
  skip  row 10 "images": host "*.a" fails
  skip  row 20: header form fails
  skip  row 30 "old": path-prefix "/old/" fails
  skip  row 40 "tls": server-name "b" fails
`},
		{"waiting for the body", "POST / HTTP/1.1\nHost: b\nForm: 1\nContent-Length: 1000\n\n", `
need more
  skip  row 10 "images": host "*.a" fails
  wait  row 20: text "x" in body undecided, header form holds
  2 rows were not tried
`},
		{"the budget is used up", "POST / HTTP/1.1\nHost: b\nForm: 1\nContent-Length: 1000\n\n" + strings.Repeat("y", 200), `
budget used up: reply 404
  skip  row 10 "images": host "*.a" fails
  wait  row 20: text "x" in body undecided, header form holds
  2 rows were not tried
`},
		{"not enough of a head", "GET / HTTP/1.1\n", `
need more
  4 rows were not tried
`},
		{"refused", "GET / HTTP/1.1\n\n", `
refused: l7: malformed request: Host is missing, repeated, or no host
  4 rows were not tried
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := p.Explain(Input{}, []byte(tt.in))
			require.Equal(t, tt.want, "\n"+e.String())
			require.Equal(t, p.Classify(Input{}, []byte(tt.in)), e.Decision)
			require.Equal(t, len(p.Rules()), len(e.Considered)+e.Passed)
		})
	}
	e := p.Explain(Input{TLS: true, ServerName: "b"}, nil)
	require.Equal(t, "tls", e.Decision.Rule.Name)
	require.Equal(t, Fails, e.Considered[0].First)
	require.Equal(t, "need more\n", Explanation{}.String())
}
