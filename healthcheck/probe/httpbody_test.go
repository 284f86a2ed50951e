package probe_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

func content(t testing.TB, fallback healthcheck.Verdict, rules ...healthcheck.MatchRule) *healthcheck.MatchList {
	t.Helper()
	l, err := healthcheck.NewMatchList(fallback, rules...)
	require.NoError(t, err)
	return l
}

func TestHTTPContent(t *testing.T) {
	up := healthcheck.MatchRule{Text: "elephant", Verdict: healthcheck.Pass}
	down := healthcheck.MatchRule{Text: "monkey", Verdict: healthcheck.Fail}
	zoo := httpWith(probe.HTTP{Content: content(t, healthcheck.Fail, up, down)})
	ine := httpWith(probe.HTTP{Content: content(t, healthcheck.Fail,
		healthcheck.MatchRule{Text: "elephant", Verdict: healthcheck.Fail}, healthcheck.MatchRule{Text: "elephantine", Verdict: healthcheck.Pass})})
	with := func(head, body string) func(*peer) { return answer("HTTP/1.1 200 OK\r\n" + head + "\r\n" + body) }
	long := strings.Repeat(".", healthcheck.MaxReply)
	testConversations(t, []conversation{
		{name: "length", prober: zoo, serve: with("Content-Length: 13\r\n", "an elephant.."), want: healthcheck.Pass, note: "elephant"},
		{name: "earlier decides", prober: zoo, serve: with("Content-Length: 16\r\n", "monkey, elephant"), want: healthcheck.Fail, err: "http: content: "},
		{name: "longer decides", prober: ine, serve: with("Content-Length: 11\r\n", "elephantine"), want: healthcheck.Pass},
		{name: "none", prober: zoo, serve: with("Content-Length: 3\r\n", "fox"), want: healthcheck.Fail, err: "no rule matched"},
		{name: "empty", prober: zoo, serve: with("Content-Length: 0\r\n", ""), want: healthcheck.Fail, err: "no rule matched"},
		{name: "no content", prober: zoo, serve: answer("HTTP/1.1 204 No Content\r\n\r\n"), want: healthcheck.Fail, err: "no rule matched"},
		{name: "chunks", prober: zoo, serve: with("Transfer-Encoding: chunked\r\n", "6\r\nan ele\r\n5 ;x=y\r\nphant\r\n0\r\n\r\n"), want: healthcheck.Pass},
		{name: "chunks outermost", prober: zoo, serve: with("Transfer-Encoding: x\r\nTransfer-Encoding: gzip , Chunked\r\n", "6\r\nan ele\r\n5\r\nphant\r\n0\r\n\r\n"), want: healthcheck.Pass},
		{name: "chunks without a hit", prober: zoo, serve: with("Transfer-Encoding: chunked\r\n", "6\r\nan ele\r\n0\r\n\r\n"), want: healthcheck.Fail, err: "no rule matched"},
		{name: "bad chunk", prober: zoo, serve: with("Transfer-Encoding: chunked\r\n", "six\r\nan ele\r\n"), want: healthcheck.Fail, err: `got "six", want the size of a chunk`},
		{name: "chunk without end", prober: zoo, serve: with("Transfer-Encoding: chunked\r\n", "6\r\nan elephant"), want: healthcheck.Fail, err: ""},
		{name: "huge chunk", prober: zoo, serve: with("Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\n"), want: healthcheck.Fail, err: "want the size of a chunk"},
		{name: "close", prober: zoo, serve: answerAndClose("HTTP/1.1 200 OK\r\n\r\nan elephant"), want: healthcheck.Pass},
		{name: "close without a hit", prober: zoo, serve: answerAndClose("HTTP/1.1 200 OK\r\n\r\nan ele"), want: healthcheck.Fail, err: "no rule matched"},
		{name: "length, cut", prober: zoo, serve: answerAndClose("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nan ele"), want: healthcheck.Fail, err: "14 bytes of the body missing: connection closed"},
		{name: "status first", prober: zoo, serve: answer("HTTP/1.1 500 No\r\nContent-Length: 8\r\n\r\nelephant"), want: healthcheck.Fail, err: "500"},
		{name: "end with CR", prober: zoo, serve: with("Content-Length: 8 \r\n", "elephant"), want: healthcheck.Pass},
		{name: "no blank", prober: zoo, serve: with("Content-Length:8\r\n", "elephant"), want: healthcheck.Pass},
		{name: "twice the same", prober: zoo, serve: with("Content-Length: 8\r\ncontent-length: 8\r\n", "elephant"), want: healthcheck.Pass},
		{name: "a list of the same", prober: zoo, serve: with("Content-Length: 8, 8\r\n", "elephant"), want: healthcheck.Pass},
		{name: "two lengths", prober: zoo, serve: with("Content-Length: 8, 9\r\n", "elephant"), want: healthcheck.Fail, err: "want one number"},
		{name: "negative", prober: zoo, serve: with("Content-Length: -1\r\n", "elephant"), want: healthcheck.Fail, err: `got "Content-Length: -1", want a number`},
		{name: "no number", prober: zoo, serve: with("Content-Length: 4x\r\n", "elephant"), want: healthcheck.Fail, err: "want a number"},
		{name: "hit past the bound", prober: zoo, serve: with("Content-Length: 200000\r\n", long+"elephant"), want: healthcheck.Fail, err: "no rule matched"},
		{name: "endless body", prober: zoo, serve: with("", long+long), want: healthcheck.Fail, err: "no rule matched"},
	})
	require.ErrorContains(t, probe.HTTP{Method: "HEAD", Content: content(t, healthcheck.Pass)}.Validate(), "HTTP.Method")
}

// TestHTTPDrip is a reply of 3 kB in pieces of 50 bytes, one each 200 ms.
func TestHTTPDrip(t *testing.T) {
	body := strings.Repeat("x", 3000)
	list := content(t, healthcheck.Pass, healthcheck.MatchRule{Text: "error", Verdict: healthcheck.Fail})
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Minute)
		start := time.Now()
		res := run(probe.HTTP{Content: list, Dialer: memory{pieces: 50, every: 200 * time.Millisecond,
			serve: answer(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))}})
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorContains(t, res.Err, "bytes of the body missing: timed out")
		require.Equal(t, timeout, time.Since(start))
	})
}

// lines reads a file of JSON objects, one a line.
func lines[T any](t testing.TB, name string) (all []T) {
	t.Helper()
	f, err := os.Open(testenv.SharedFile(t, name))
	require.NoError(t, err)
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		var v T
		require.NoError(t, json.Unmarshal(sc.Bytes(), &v))
		all = append(all, v)
	}
	require.NoError(t, sc.Err())
	return all
}

// TestHTTPEvader has replies with odd status lines and framing: no hang, no read without
// bound, and a pass only where the status line is well formed.
func TestHTTPEvader(t *testing.T) {
	type row struct {
		N          int
		Response   string `json:"response_b64"`
		StatusLine string `json:"status_line"`
	}
	list := content(t, healthcheck.Pass, healthcheck.MatchRule{Text: "nosuchtext", Verdict: healthcheck.Fail})
	n := 0
	for _, r := range lines[row](t, "l7/http_evader_responses.jsonl") {
		reply, err := base64.StdEncoding.DecodeString(r.Response)
		require.NoError(t, err)
		if len(reply) == 0 {
			continue // the description
		}
		n++
		first, _, _ := bytes.Cut(reply, []byte("\n"))
		for _, p := range []probe.HTTP{{}, {Content: list}} {
			var verdicts []healthcheck.Verdict
			for _, pieces := range []int{0, 1, 17} {
				synctest.Test(t, func(t *testing.T) {
					start := time.Now()
					p.Dialer = memory{serve: answerAndClose(string(reply)), pieces: pieces}
					res := run(p)
					verdicts = append(verdicts, res.Verdict)
					require.Zero(t, time.Since(start), "number %d", r.N)
					if res.Verdict == healthcheck.Pass && p.Content == nil && !bytes.Contains(first, []byte(" 1")) {
						require.Regexp(t, `^HTTP/\d\.\d (2\d\d|401)( .*)?\r?$`, string(first))
					}
				})
			}
			require.Equal(t, verdicts[0], verdicts[1], "number %d", r.N)
			require.Equal(t, verdicts[0], verdicts[2], "number %d", r.N)
		}
	}
	require.Greater(t, n, 100)
}
