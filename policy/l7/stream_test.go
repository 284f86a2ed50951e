package l7

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
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
		log, ends := follow(t, p.NewStream(Input{}), long, size)
		require.Equal(t, []string{"0 budget used up "}, log)
		require.Empty(t, ends)
	}
}

// FuzzStream checks that the cutting of the bytes does not matter, and that the ends of
// requests are where net/http sees them as far as it accepts them.
func FuzzStream(f *testing.F) {
	for _, s := range []string{getA + getB + postA + getB + chunkA + getB, closing + getB, chunkA + chunkA} {
		f.Add([]byte(s), uint8(7), uint8(1), uint8(200), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, size, mode, budget uint8, body bool) {
		rules := streamRules
		if !body {
			rules = rules[:2]
		}
		p := compile(t, &Config{Mode: Mode(mode % 3), Budget: 4 * (1 + int(budget))}, rules...)
		log, ends := follow(t, p.NewStream(Input{}), data, len(data)+1)
		pieces, _ := follow(t, p.NewStream(Input{}), data, 1+int(size))
		require.Equal(t, log, pieces)

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
