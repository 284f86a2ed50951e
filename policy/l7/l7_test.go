package l7

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func compile(t testing.TB, cfg *Config, rules ...Rule) *Policy {
	t.Helper()
	p, err := Compile(cfg, rules...)
	require.NoError(t, err)
	return p
}

func farm(name string) Action { return Action{Do: Farm, Farm: name} }

func TestMethods(t *testing.T) {
	const get = "GET /images/cat.jpg?size=big HTTP/1.1\r\nHost: WWW.Example.com:8080\r\nX-Tag: one\r\nX-tag: two\r\n" +
		"Cookie: a=1; session=\"abc\"; b=2\r\nAccept: text/html\r\n\r\n"
	const post = "POST /form HTTP/1.1\r\nHost: [2001:db8::1]:80\r\nContent-Length: 11\r\n\r\nuser=winter"
	const chunkedPost = "POST /form HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nuser=wi\r\n4\r\nnter\r\n0\r\n\r\n"
	for _, tt := range []struct {
		method  Method
		request string
		want    bool
	}{
		{Method{}, get, true},
		{Method{Kind: Host, Value: "www.example.com"}, get, true},
		{Method{Kind: Host, Value: "www.example.com."}, get, true},
		{Method{Kind: Host, Value: "example.com"}, get, false},
		{Method{Kind: Host, Value: "*.example.com"}, get, true},
		{Method{Kind: Host, Value: "*.www.example.com"}, get, false},
		{Method{Kind: Host, Value: "www.*"}, get, true},
		{Method{Kind: Host, Value: "*EXAMPLE*"}, get, true},
		{Method{Kind: Host, Value: "*"}, get, true},
		{Method{Kind: Host, Value: "[2001:db8::1]"}, post, true},
		{Method{Kind: Host, Value: "a.b"}, "GET http://A.b/ HTTP/1.1\r\nHost: a.b\r\n\r\n", true},
		{Method{Kind: Host, Value: "a.b"}, "CONNECT a.b:443 HTTP/1.1\r\nHost: a.b:443\r\n\r\n", true},
		{Method{Kind: PathPrefix, Value: "/images"}, get, true},
		{Method{Kind: PathPrefix, Value: "/images/"}, get, true},
		{Method{Kind: PathPrefix, Value: "/Images/"}, get, false},
		{Method{Kind: PathExact, Value: "/images/cat.jpg"}, get, true},
		{Method{Kind: PathExact, Value: "/images/cat"}, get, false},
		{Method{Kind: PathExact, Value: "/"}, "GET http://a.b?x HTTP/1.1\r\nHost: a.b\r\n\r\n", true},
		{Method{Kind: PathExact, Value: "*"}, "OPTIONS * HTTP/1.1\r\nHost: a.b\r\n\r\n", true},
		{Method{Kind: PathSuffix, Value: ".jpg"}, get, true},
		{Method{Kind: PathSuffix, Value: ".png"}, get, false},
		{Method{Kind: URL, Value: "http://www.example.com/images/cat.jpg?size=big"}, get, true},
		{Method{Kind: URL, Value: "www.example.com/images/cat.jpg"}, get, false},
		{Method{Kind: URL, Value: "*.example.com/images/*"}, get, true},
		{Method{Kind: URL, Value: "WWW.example.com./images/*"}, get, true},
		{Method{Kind: Host, Value: "[2001:DB8:*"}, post, true},
		{Method{Kind: Host, Value: "*:1]"}, post, true},
		{Method{Kind: URL, Value: "a.b"}, "GET http://a.b HTTP/1.1\r\nHost: a.b\r\n\r\n", true},
		{Method{Kind: Header, Key: "x-TAG"}, get, true},
		{Method{Kind: Header, Key: "x-tag", Value: "two"}, get, true},
		{Method{Kind: Header, Key: "x-tag", Value: "t"}, get, false},
		{Method{Kind: Header, Key: "x-tag", Value: "*t*"}, get, true},
		{Method{Kind: Header, Key: "x-none"}, get, false},
		{Method{Kind: Cookie, Key: "session", Value: "abc"}, get, true},
		{Method{Kind: Cookie, Key: "session", Value: "a*"}, get, true},
		{Method{Kind: Cookie, Key: "b"}, get, true},
		{Method{Kind: Cookie, Key: "Session"}, get, false},
		{Method{Kind: Text, Value: "text/html"}, get, true},
		{Method{Kind: Text, Value: "text/html", In: InBody}, get, false},
		{Method{Kind: Text, Value: "=winter", In: InBody}, post, true},
		{Method{Kind: Text, Value: "=winter", In: InBoth}, post, true},
		{Method{Kind: Text, Value: "/form", In: InBoth}, post, true},
		{Method{Kind: Text, Value: "=winter"}, post, false},
		{Method{Kind: Text, Value: "=winter", In: InBody}, chunkedPost, true},
		{Method{Kind: Regexp, Value: `(?m)^X-Tag: (one|three)\r$`}, get, true},
		{Method{Kind: Regexp, Value: `user=w.*r$`, In: InBody}, chunkedPost, true},
		{Method{Kind: Regexp, Value: `user=x`, In: InBody}, chunkedPost, false},
		{Method{Kind: ServerName, Value: "a.b"}, get, false},
		{Method{Kind: ALPN, Value: "h2"}, get, false},
	} {
		for _, early := range []bool{false, true} {
			p := compile(t, &Config{Early: early, Default: farm("no")}, Rule{First: tt.method, Action: farm("yes")})
			want := farm("no")
			if tt.want {
				want = farm("yes")
			}
			d := p.Classify(Input{}, []byte(tt.request))
			require.NoError(t, d.Err)
			require.Equal(t, want, d.Action, "%+v in %q: %v", tt.method, tt.request, d)
			// The same, byte by byte.
			c := classifier{policy: p}
			for i := range len(tt.request) + 1 {
				if d = c.classify([]byte(tt.request[:i])); d.Verdict != NeedMore {
					break
				}
			}
			require.Equal(t, want, d.Action, "%+v in %q: %v", tt.method, tt.request, d)
		}
	}
}

func TestTLSNames(t *testing.T) {
	p := compile(t, &Config{Default: farm("rest")},
		Rule{Index: 1, First: Method{Kind: Host, Value: "*"}, Action: farm("http")},
		Rule{Index: 2, First: Method{Kind: ServerName, Value: "*.example.com"}, Second: Method{Kind: ALPN, Value: "h2"}, Action: farm("h2")},
		Rule{Index: 3, First: Method{Kind: ServerName, Value: "www.example.com"}, Action: farm("www")},
	)
	for _, tt := range []struct {
		in   Input
		want string
	}{
		{Input{TLS: true, ServerName: "WWW.example.com.", ALPN: []string{"http/1.1", "h2"}}, "h2"},
		{Input{TLS: true, ServerName: "www.example.com", ALPN: []string{"http/1.1"}}, "www"},
		{Input{TLS: true, ALPN: []string{"h2"}}, "rest"},
	} {
		d := p.Classify(tt.in, nil)
		require.Equal(t, tt.want, d.Action.Farm)
		st := p.NewStream(tt.in).Next([]byte("\x16\x03\x01"))
		require.Equal(t, d, st.Decision)
		require.Equal(t, 3, st.N)
		require.True(t, st.Opaque)
	}
}

func TestRowsAreTriedInIndexOrder(t *testing.T) {
	p := compile(t, nil,
		Rule{Index: 30, Action: Action{Do: Reply, Code: 503}},
		Rule{Index: 10, First: Method{Kind: Host, Value: "a"}, Second: Method{Kind: PathPrefix, Value: "/x"}, Action: farm("ax")},
		Rule{Index: 20, First: Method{Kind: Host, Value: "a"}, Action: Action{Do: Default}},
	)
	for target, want := range map[string]Action{
		"a /x": farm("ax"), "a /y": {}, "b /x": {Do: Reply, Code: 503},
	} {
		host, path, _ := strings.Cut(target, " ")
		d := p.Classify(Input{}, []byte("GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n"))
		require.Equal(t, Decided, d.Verdict)
		require.Equal(t, want, d.Action, target)
	}
	require.Equal(t, []int{10, 20, 30}, []int{p.Rules()[0].Index, p.Rules()[1].Index, p.Rules()[2].Index})
	require.Equal(t, DefaultBudget, p.Config().Budget)
	require.Equal(t, NoMatch, new(Policy).Classify(Input{}, nil).Verdict)
	require.Equal(t, DefaultBudget, new(Policy).Config().Budget)
}

func TestBudget(t *testing.T) {
	rules := []Rule{
		{Index: 1, First: Method{Kind: PathPrefix, Value: "/x"}, Action: farm("path")},
		{Index: 2, First: Method{Kind: Header, Key: "late"}, Action: farm("late")},
		{Index: 3, Action: farm("all")},
	}
	p := compile(t, &Config{Budget: 100, Default: farm("default")}, rules...)
	head := "GET %s HTTP/1.1\r\nHost: a\r\nFill: " + strings.Repeat("f", 200) + "\r\nLate: 1\r\n\r\n"
	d := p.Classify(Input{}, []byte(fmt.Sprintf(head, "/x")))
	require.Equal(t, Decided, d.Verdict)
	require.Equal(t, farm("path"), d.Action)
	d = p.Classify(Input{}, []byte(fmt.Sprintf(head, "/y")))
	require.Equal(t, BudgetUsedUp, d.Verdict)
	require.Equal(t, farm("default"), d.Action)
	require.Nil(t, d.Rule)
	require.Equal(t, NeedMore, p.Classify(Input{}, []byte(fmt.Sprintf(head, "/y")[:99])).Verdict)

	body := compile(t, &Config{Budget: 100}, Rule{First: Method{Kind: Text, Value: "needle", In: InBody}, Action: farm("body")})
	post := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
	require.Equal(t, Decided, body.Classify(Input{}, []byte(post+"a needle"+strings.Repeat("x", 50))).Verdict)
	require.Equal(t, BudgetUsedUp, body.Classify(Input{}, []byte(post+strings.Repeat("x", 900)+"needle")).Verdict)
	require.Equal(t, NeedMore, body.Classify(Input{}, []byte(post+"needle")).Verdict)

	early := compile(t, &Config{Early: true}, rules...)
	require.Equal(t, farm("path"), early.Classify(Input{}, []byte("GET /xy HTTP/1.1\r\n")).Action)
	require.Equal(t, NeedMore, early.Classify(Input{}, []byte("GET /y HTTP/1.1\r\nHost: a\r\n")).Verdict)
	require.Equal(t, farm("late"), early.Classify(Input{}, []byte("GET /y HTTP/1.1\r\nHost: a\r\nLate:\r\n")).Action)
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"/a/b": "/a/b", "/": "/", "//a//b//": "/a/b/", "/a/./b/.": "/a/b/", "/a/../b": "/b", "/..": "/", "/../../a": "/a",
		"/a/b/..": "/a/", "/%61dmin": "/admin", "/%2e%2E/x": "/x", "/a%2fb": "/a%2Fb", "/%0a%7f": "/%0A%7F", "/%": "/%", "/%2": "/%2", "/%zz": "/%zz",
		"/%2561": "/%61", "": "", "*": "*", "/a/...": "/a/...", "/a/b/../../..": "/", "/.a": "/.a",
	} {
		require.Equal(t, want, string(appendNormalized(nil, []byte(in))), in)
		require.Equal(t, "x"+want, string(appendNormalized([]byte("x"), []byte(in))), in)
	}
	rule := Rule{First: Method{Kind: PathPrefix, Value: "/admin"}, Action: farm("admin")}
	req := []byte("GET /x/..//%61dmin HTTP/1.1\r\nHost: a\r\n\r\n")
	require.Equal(t, NoMatch, compile(t, nil, rule).Classify(Input{}, req).Verdict)
	require.Equal(t, Decided, compile(t, &Config{Normalize: true}, rule).Classify(Input{}, req).Verdict)
}

func TestCompileFaults(t *testing.T) {
	_, err := Compile(&Config{Budget: 65536, Mode: 9, Default: Action{Do: Default}},
		Rule{Index: 1, Name: "ok"},
		Rule{Index: 1, Name: "index"},
		Rule{Index: 2, First: Method{Kind: Host}},
		Rule{Index: 3, First: Method{Kind: Header, Value: "x"}},
		Rule{Index: 4, First: Method{Kind: Cookie, Key: "a b"}},
		Rule{Index: 5, First: Method{Kind: PathPrefix, Value: "x"}},
		Rule{Index: 6, First: Method{Kind: Regexp, Value: "("}},
		Rule{Index: 7, First: Method{Kind: Host, Value: "x", In: InBody}},
		Rule{Index: 8, First: Method{Kind: 99}},
		Rule{Index: 9, Second: Method{Kind: Text, Value: "x", In: 9}},
		Rule{Index: 10, First: Method{Value: "x"}},
		Rule{Index: 11, First: Method{Kind: URL, Value: "/x"}},
		Rule{Index: 12, First: Method{Kind: Host, Key: "x", Value: "x"}},
		Rule{Index: 13, Action: Action{Do: Farm}},
		Rule{Index: 14, Action: Action{Do: Redirect}},
		Rule{Index: 15, Action: Action{Do: Reply}},
		Rule{Index: 16, Action: Action{Code: 200}},
		Rule{Index: 17, Action: Action{Do: 77}},
		Rule{Index: 18, Action: Action{Do: Redirect, Location: "http://a/\r\nX: y"}},
		Rule{Index: 19, Action: Action{Do: Redirect, Location: "http://a/", Code: 200}},
		Rule{Index: 20, First: Method{Kind: Host, Value: "a.b:80"}},
		Rule{Index: 21, First: Method{Kind: Host, Value: "2001:db8::1"}},
		Rule{Index: 22, First: Method{Kind: Host, Value: "*.bücher.example"}},
		Rule{Index: 23, First: Method{Kind: Host, Value: "[::1]:80"}},
		Rule{Index: 24, First: Method{Kind: ServerName, Value: "a b"}},
		Rule{Index: 25, First: Method{Kind: URL, Value: "http://a:80/x"}},
		Rule{Index: 26, First: Method{Kind: URL, Value: "a?x"}},
	)
	require.ErrorIs(t, err, ErrInvalid)
	rows := make(map[int]bool)
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		var re *RuleError
		if errors.As(e, &re) {
			require.ErrorIs(t, re, ErrInvalid)
			rows[re.At] = true
		}
	}
	require.Len(t, rows, 26)
	for _, s := range []string{"Budget 65536", "Mode Mode(9)", "its own default"} {
		require.ErrorContains(t, err, s)
	}
}

func TestAppendResponse(t *testing.T) {
	b, ok := Action{Do: Redirect, Location: "https://a/"}.AppendResponse(nil)
	require.True(t, ok)
	require.Equal(t, "HTTP/1.1 302 Found\r\nLocation: https://a/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", string(b))
	b, ok = Action{Do: Reply, Code: 204}.AppendResponse(nil)
	require.True(t, ok)
	require.Equal(t, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", string(b))
	_, ok = farm("x").AppendResponse(nil)
	require.False(t, ok)
}

func roundTrip[T comparable, P interface {
	*T
	encoding.TextAppender
	encoding.TextMarshaler
	encoding.TextUnmarshaler
}](t *testing.T, values int, make func(uint8) T) {
	t.Helper()
	for i := range uint8(values) {
		v := make(i)
		text, err := P(&v).MarshalText()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(v), string(text))
		var back T
		require.NoError(t, P(&back).UnmarshalText(text))
		require.Equal(t, v, back)
	}
	v := make(uint8(values))
	_, err := P(&v).MarshalText()
	require.ErrorIs(t, err, ErrInvalid)
	require.NotEmpty(t, fmt.Sprint(v))
	require.ErrorIs(t, P(&v).UnmarshalText([]byte("?")), ErrInvalid)
}

func TestText(t *testing.T) {
	roundTrip(t, 12, func(i uint8) Kind { return Kind(i) })
	roundTrip(t, 3, func(i uint8) Part { return Part(i) })
	roundTrip(t, 5, func(i uint8) Do { return Do(i) })
	roundTrip(t, 3, func(i uint8) Mode { return Mode(i) })
	roundTrip(t, 5, func(i uint8) Verdict { return Verdict(i) })
	roundTrip(t, 4, func(i uint8) Finding { return Finding(i) })

	const text = `[{"index":1,"first":{"kind":"host","value":"*.example.com"},"second":{"kind":"text","value":"x","in":"body"},"action":{"do":"farm","farm":"f"}},` +
		`{"index":2,"first":{"kind":"always"},"action":{"do":"redirect","location":"https://a/","code":301}}]`
	var rules []Rule
	require.NoError(t, json.Unmarshal([]byte(text), &rules))
	out, err := json.Marshal(rules)
	require.NoError(t, err)
	require.JSONEq(t, text, string(out))
	compile(t, nil, rules...)

	// YAML takes what JSON is, and what it writes comes back.
	var read, back []Rule
	require.NoError(t, yaml.Unmarshal([]byte(text), &read))
	require.Equal(t, rules, read)
	for i := range 12 {
		read = append(read, Rule{Index: 3 + i, Name: "n", First: Method{Kind: Kind(i), Key: "k: #", Value: "*\n'x\"", In: Part(i % 3)},
			Second: Method{Kind: Kind(11 - i)}, Action: Action{Do: Do(i % 5), Code: i}})
	}
	out, err = yaml.Marshal(read)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(out, &back))
	require.Equal(t, read, back, "%s", out)
	back = nil
	out, err = json.Marshal(read)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &back))
	require.Equal(t, read, back, "%s", out)
	require.ErrorIs(t, yaml.Unmarshal([]byte(`[{index: 1, first: {kind: hots}}]`), &back), ErrInvalid)
}
