package l7

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// follow feeds a stream, with at most size new bytes at a time, and notes what it says
// with the offsets.
func follow(t testing.TB, s *Stream, data []byte, size int) (log []string, ends []int) {
	t.Helper()
	taken, given := 0, 0
	opaque := false
	for given < len(data) {
		given = min(len(data), given+size)
		for {
			st := s.Next(data[taken:given])
			require.LessOrEqual(t, st.N, given-taken)
			if v := st.Decision.Verdict; v != NeedMore {
				name := ""
				if st.Decision.Rule != nil {
					name = st.Decision.Rule.Name
				}
				log = append(log, fmt.Sprint(taken, " ", v, " ", name))
				if v == Refused {
					require.Zero(t, st.N)
					require.Error(t, st.Decision.Err)
					return log, ends
				}
			}
			if opaque {
				require.Equal(t, given-taken, st.N)
				require.False(t, st.Begin || st.End)
			}
			opaque = opaque || st.Opaque
			taken += st.N
			if st.End {
				log = append(log, fmt.Sprint(taken, " end"))
				ends = append(ends, taken)
			}
			if st.N == 0 && st.Decision.Verdict == NeedMore {
				break
			}
		}
	}
	return log, ends
}

var streamRules = []Rule{
	{Index: 1, Name: "a", First: Method{Kind: PathPrefix, Value: "/a"}, Action: farm("a")},
	{Index: 2, Name: "b", First: Method{Kind: Host, Value: "b"}, Action: farm("b")},
	{Index: 3, Name: "c", First: Method{Kind: Text, Value: "cc", In: InBoth}, Action: farm("c")},
}

const (
	getA    = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
	getB    = "GET /x HTTP/1.1\r\nHost: b\r\n\r\n"
	postA   = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\nGET /b HTTP/1.1\r\nHost: b\r\n\r\n__"
	chunkA  = "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1f;x=y\r\nGET /b HTTP/1.1\r\nHost: b\r\n\r\n___\r\n0\r\nT: u\r\n\r\n"
	closing = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)

func TestStream(t *testing.T) {
	ends := func(parts ...string) (want []string) {
		n := 0
		for _, p := range parts {
			name := "a"
			if p == getB {
				name = "b"
			}
			want = append(want, fmt.Sprint(n, " decided ", name))
			n += len(p)
			want = append(want, fmt.Sprint(n, " end"))
		}
		return want
	}
	for _, tt := range []struct {
		name string
		mode Mode
		in   string
		want []string
	}{
		{"requests on a kept-alive connection", Overwrite, getA + getB + postA + getB + chunkA + getB, ends(getA, getB, postA, getB, chunkA, getB)},
		{"the same, keeping servers", Maintain, getA + postA + getB, ends(getA, postA, getB)},
		{"only the first", First, getA + getB + "anything at all", []string{"0 decided a"}},
		{"after close nothing is followed", Overwrite, closing + getB, ends(closing)},
		{"after an upgrade nothing is followed", Overwrite,
			"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00", []string{"0 decided a", "69 end"}},
		{"no upgrade without a protocol", Overwrite, "GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\r\n" + getB,
			[]string{"0 decided a", "49 end", "49 decided b", "77 end"}},
		{"HTTP/1.0 kept alive", Maintain, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + getB,
			[]string{"0 decided a", "43 end", "43 decided b", "71 end"}},
		{"HTTP/1.0 not kept alive", Maintain, "GET /a HTTP/1.0\r\n\r\n" + getB, []string{"0 decided a", "19 end"}},
		{"HEAD with a length it has no body for", Overwrite, "HEAD /a HTTP/1.1\r\nHost: x\r\nContent-Length: 28\r\n\r\n" + getB + getB,
			[]string{"0 decided a", "77 end", "77 decided b", "105 end"}},
		{"empty lines between requests", Overwrite, getA + "\r\n\r\n" + getB, []string{"0 decided a", "28 end", "28 decided b", "60 end"}},
		{"a chunk size beyond bounds", Overwrite, strings.Replace(chunkA, "1f;", "10000000000000001f;", 1), []string{"0 decided a", "57 refused "}},
		{"a huge chunk", Overwrite, strings.Replace(chunkA, "1f;", "fffffffffffffff;", 1) + getB, []string{"0 decided a"}},
		{"a chunk size with a sign", Overwrite, strings.Replace(chunkA, "1f;", "+1f;", 1), []string{"0 decided a", "57 refused "}},
		{"a chunk size with a prefix", Overwrite, strings.Replace(chunkA, "1f;", "0x1f;", 1), []string{"0 decided a", "57 refused "}},
		{"a chunk size with a space first", Overwrite, strings.Replace(chunkA, "1f;", " 1f;", 1), []string{"0 decided a", "57 refused "}},
		{"no chunk size", Overwrite, strings.Replace(chunkA, "1f;x=y", ";x=y", 1), []string{"0 decided a", "57 refused "}},
		{"a bare LF in an extension", Overwrite, strings.Replace(chunkA, "x=y", "x\ny", 1), []string{"0 decided a", "57 refused "}},
		{"a bare CR in an extension", Overwrite, strings.Replace(chunkA, "x=y", "x\ry", 1), []string{"0 decided a", "57 refused "}},
		{"a length in the trailer", Overwrite, strings.Replace(chunkA, "T: u", "Content-Length: 9", 1), []string{"0 decided a", "101 refused "}},
		{"a folded trailer", Overwrite, strings.Replace(chunkA, "T: u", "T: u\r\n v", 1), []string{"0 decided a", "107 refused "}},
		{"a trailer line that ends in LF", Overwrite, strings.Replace(chunkA, "T: u\r\n", "T: u\n", 1), []string{"0 decided a", "101 refused "}},
		{"a smuggled second request", Overwrite, getA + "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			append(ends(getA), fmt.Sprint(len(getA), " refused "))},
		{"a bad chunk", Overwrite, strings.Replace(chunkA, "1f;", "1g;", 1), []string{"0 decided a", "57 refused "}},
		{"a chunk too short", Overwrite, strings.Replace(chunkA, "1f;", "1e;", 1), []string{"0 decided a", "95 refused "}},
		{"a chunk line that ends in LF", Overwrite, strings.Replace(chunkA, "1f;x=y\r\n", "1f\n", 1), []string{"0 decided a", "57 refused "}},
		{"a bad trailer", Overwrite, strings.Replace(chunkA, "T: u", "T u", 1), []string{"0 decided a", "101 refused "}},
		{"a chunk line without end", Overwrite, strings.Replace(chunkA, "1f;", "1f;"+strings.Repeat("x", 300), 1), []string{"0 decided a", "57 refused "}},
		{"trailers without end", Overwrite, strings.Replace(chunkA, "T: u", strings.Repeat("T: u\r\n", 2000), 1), nil},
		{"no match", Overwrite, strings.Replace(getA, "/a", "/z", 1) + getB, []string{"0 no match ", "28 end", "28 decided b", "56 end"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, &Config{Mode: tt.mode, Budget: 1000}, streamRules...)
			log, _ := follow(t, p.NewStream(Input{}), []byte(tt.in), len(tt.in))
			if tt.want != nil {
				require.Equal(t, tt.want, log)
			} else {
				require.Contains(t, log[len(log)-1], "refused")
			}
			for size := 1; size < 40; size++ {
				pieces, _ := follow(t, p.NewStream(Input{}), []byte(tt.in), size)
				require.Equal(t, log, pieces, size)
			}
		})
	}
}

func TestStreamEarly(t *testing.T) {
	p := compile(t, &Config{Mode: Overwrite, Early: true}, streamRules...)
	s := p.NewStream(Input{})
	st := s.Next([]byte("GET /a HTTP/1.1\r\nHos"))
	require.Equal(t, Decided, st.Decision.Verdict)
	require.Zero(t, st.N, "nothing passes before the head was judged")
	require.Equal(t, Step{}, s.Next([]byte("GET /a HTTP/1.1\r\nHost: x\r\n")))
	require.Equal(t, Step{N: len(getA), Begin: true, End: true}, s.Next([]byte(getA)))

	s = p.NewStream(Input{})
	require.Equal(t, Decided, s.Next([]byte("GET /a HTTP/1.1\r\nHos")).Decision.Verdict)
	require.Equal(t, Refused, s.Next([]byte("GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n")).Decision.Verdict)
	require.Equal(t, Refused, s.Next(nil).Decision.Verdict)
}

func TestStreamBudget(t *testing.T) {
	p := compile(t, &Config{Mode: Overwrite, Budget: 64}, streamRules...)
	long := []byte("GET /z HTTP/1.1\r\nHost: x\r\nFill: " + strings.Repeat("f", 100) + "\r\n\r\n" + getB)
	for _, size := range []int{len(long), 10, 1} {
		log, _ := follow(t, p.NewStream(Input{}), long, size)
		require.Equal(t, []string{"0 budget used up ", "136 end", "136 decided b", "164 end"}, log, "a long head hides nothing behind it")

		first := compile(t, &Config{Budget: 64}, streamRules...)
		log, _ = follow(t, first.NewStream(Input{}), long, size)
		require.Equal(t, []string{"0 budget used up "}, log)
	}
	endless := []byte("GET /a HTTP/1.1\r\nHost: x\r\nFill: " + strings.Repeat("f", MaxBudget))
	for _, size := range []int{len(endless), 1000} {
		log, _ := follow(t, p.NewStream(Input{}), endless, size)
		require.Equal(t, []string{"0 refused "}, log)
	}
	bad := append([]byte("GET /a HTTP/1.1\r\nHost: x\r\nFill: "), strings.Repeat("f", 100)+"\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"...)
	for _, size := range []int{len(bad), 1} {
		log, _ := follow(t, p.NewStream(Input{}), bad, size)
		require.Equal(t, []string{"0 refused "}, log, "behind the budget it is judged too")
	}
}

// cutRules look at the body in every way, alone and with another method.
var cutRules = []Rule{
	{Index: 1, Name: "body and path", First: Method{Kind: Text, Value: "hay", In: InBody}, Second: Method{Kind: PathPrefix, Value: "/b"}, Action: farm("1")},
	{Index: 2, Name: "both and header", First: Method{Kind: Regexp, Value: "ne+dle", In: InBoth}, Second: Method{Kind: Header, Key: "x"}, Action: farm("2")},
	{Index: 3, Name: "path and body", First: Method{Kind: PathPrefix, Value: "/c"}, Second: Method{Kind: Text, Value: "hay", In: InBody}, Action: farm("3")},
	{Index: 4, Name: "body and body", First: Method{Kind: Text, Value: "h", In: InBody}, Second: Method{Kind: Text, Value: "y", In: InBoth}, Action: farm("4")},
}

// TestCutsDoNotMatter: fed byte by byte, in two pieces cut anywhere, or as a whole, with every
// budget, a request is decided alike.
func TestCutsDoNotMatter(t *testing.T) {
	const chunked = " HTTP/1.1\r\nHost: a\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nha\r\n1\r\ny\r\n0\r\n\r\n"
	requests := []string{
		"POST /b" + chunked, "POST /c" + chunked, "POST /d" + chunked,
		"POST /b" + strings.Replace(chunked, "1\r\ny", "1g\r\ny", 1), "POST /c" + strings.Replace(chunked, "2\r\n", "2\n", 1), "POST /needle" + strings.Replace(chunked, "2\r\n", "2\n", 1),
		"POST /c HTTP/1.1\r\nHost: a\r\nX: neeedle\r\nContent-Length: 3\r\n\r\nhay",
		"POST /d HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 10\r\n\r\nneedle hay",
		getA, getA + getB,
	}
	for _, rules := range [][]Rule{cutRules, append(slices.Clone(cutRules), Rule{Index: 5, Name: "rest", Action: farm("5")})} {
		for _, in := range requests {
			for budget := 1; budget <= len(in)+2; budget++ {
				p := compile(t, &Config{Mode: Overwrite, Budget: budget}, rules...)
				want := p.Classify(Input{}, []byte(in))
				require.Equal(t, want, p.Explain(Input{}, []byte(in)).Decision)
				for first := range len(in) {
					c := classifier{policy: p}
					got := c.classify([]byte(in[:first]))
					if got.Verdict == NeedMore {
						got = c.classify([]byte(in))
					}
					require.Equal(t, want, got, "budget %d, cut at %d: %q", budget, first, in)
				}
				log, _ := follow(t, p.NewStream(Input{}), []byte(in), len(in))
				pieces, _ := follow(t, p.NewStream(Input{}), []byte(in), 1)
				require.Equal(t, log, pieces, "budget %d: %q", budget, in)
			}
		}
	}
}

// TestRowsAreNotTriedForEveryByte: while the body arrives, nothing is searched again and again.
func TestRowsAreNotTriedForEveryByte(t *testing.T) {
	for _, early := range []bool{false, true} {
		p := compile(t, &Config{Early: early}, cutRules...)
		head := "POST /c HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 1000\r\n\r\n"
		in := []byte(head + strings.Repeat("z", 1000))
		tried := 0
		c := classifier{policy: p, visit: func(int, Finding, Finding) { tried++ }}
		for i := range in {
			require.Equal(t, NeedMore, c.classify(in[:i]).Verdict)
		}
		require.Equal(t, NoMatch, c.classify(in).Verdict)
		require.LessOrEqual(t, tried, 7*len(cutRules), "once a line, if at all, and at the end")
	}
}

// TestUpgradeDeclined: a client cannot hide requests behind one for a protocol that no
// server speaks.
func TestUpgradeDeclined(t *testing.T) {
	for _, request := range []string{
		"GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: none\r\n\r\n",
		"CONNECT b:1 HTTP/1.1\r\nHost: b:1\r\n\r\n",
	} {
		p := compile(t, &Config{Mode: Overwrite}, streamRules...)
		s := p.NewStream(Input{})
		require.False(t, s.Declined())
		st := s.Next([]byte(request + getB))
		require.Equal(t, Decided, st.Decision.Verdict)
		require.Equal(t, len(request), st.N)
		require.True(t, st.End && st.Opaque && st.Upgrade)
		require.True(t, s.Declined())
		require.False(t, s.Declined())
		st = s.Next([]byte(getB))
		require.Equal(t, "b", st.Decision.Rule.Name)

		s = p.NewStream(Input{})
		s.Next([]byte(request))
		require.Equal(t, Step{Opaque: true}, s.Next(nil))
		require.Equal(t, Step{N: 3, Opaque: true}, s.Next([]byte("abc")))
		require.False(t, s.Declined(), "too late")
	}
}

// TestUpgradeHeldBack: whatever follows an upgrade in the same bytes is not taken with it, and
// in the mode First there is nothing to hold back for.
func TestUpgradeHeldBack(t *testing.T) {
	const request = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: none\r\n\r\n"
	for _, mode := range []Mode{First, Overwrite, Maintain} {
		for cut := range len(request + getB) {
			s := compile(t, &Config{Mode: mode}, streamRules...).NewStream(Input{})
			taken, upgrade := 0, false
			for _, given := range []int{cut, len(request + getB)} {
				for !upgrade {
					st := s.Next([]byte(request + getB)[taken:given])
					taken, upgrade = taken+st.N, st.Upgrade
					if st.N == 0 && st.Decision.Verdict == NeedMore {
						break
					}
				}
			}
			require.Equal(t, mode != First, upgrade)
			if mode == First {
				require.Equal(t, len(request+getB), taken)
			} else {
				require.Equal(t, len(request), taken)
			}
		}
	}
}

// FuzzStream checks that the cutting of the bytes does not matter, and that the ends of
// requests are where net/http sees them as far as it accepts them.
func FuzzStream(f *testing.F) {
	for _, s := range []string{getA + getB + postA + getB + chunkA + getB, closing + getB, chunkA + chunkA} {
		f.Add([]byte(s), uint8(7), uint8(1), uint8(200), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, size, mode, budget uint8, body bool) {
		rules := streamRules[:2]
		if body {
			rules = append(slices.Clone(streamRules), Rule{Index: 4, First: Method{Kind: Regexp, Value: "x+y", In: InBody}, Second: Method{Kind: PathSuffix, Value: "y"}, Action: farm("d")},
				Rule{Index: 5, Name: "e", Action: farm("e")})
		}
		p := compile(t, &Config{Mode: Mode(mode % 3), Budget: 4 * (1 + int(budget))}, rules...)
		log, ends := follow(t, p.NewStream(Input{}), data, len(data)+1)
		pieces, _ := follow(t, p.NewStream(Input{}), data, 1+int(size))
		require.Equal(t, log, pieces)

		e := p.Explain(Input{}, data)
		d := p.Classify(Input{}, data)
		require.Equal(t, d, e.Decision)
		if d.Verdict == Decided {
			last := e.Considered[len(e.Considered)-1]
			require.Same(t, d.Rule, last.Rule)
			require.Equal(t, Holds, and(last.First, last.Second))
		}
		require.NotEmpty(t, e.String())

		early := compile(t, &Config{Mode: Mode(mode % 3), Budget: 4 * (1 + int(budget)), Early: true}, rules...)
		follow(t, early.NewStream(Input{}), data, 1+int(size))

		src := bytes.NewReader(data)
		r := bufio.NewReader(src)
		for _, end := range ends {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if req.Method == http.MethodConnect {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			require.Equal(t, end, len(data)-src.Len()-r.Buffered(), "%q", data)
		}
	})
}
