package l7

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// feed gives r the bytes in pieces of a size, and returns after how many the reply was complete, or -1.
func feed(r *Replies, data []byte, size int) int {
	for at := 0; at < len(data); at += size {
		to := min(len(data), at+size)
		if r.Complete() {
			return at
		}
		r.Feed(data[at:to])
		if size == 1 && r.Complete() {
			return to
		}
	}
	if r.Complete() {
		return len(data)
	}
	return -1
}

func TestReplies(t *testing.T) {
	for name, c := range map[string]struct {
		method, data string
		complete     bool
		switched     bool
		err          error
	}{
		"length":                    {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", true, false, nil},
		"no body":                   {"GET", "HTTP/1.1 204 No Content\r\n\r\n", true, false, nil},
		"not modified":              {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 30\r\n\r\n", true, false, nil},
		"to HEAD":                   {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n", true, false, nil},
		"to HEAD, chunked":          {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true, false, nil},
		"empty":                     {"GET", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", true, false, nil},
		"chunked":                   {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nT: x\r\n\r\n", true, false, nil},
		"interim":                   {"POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", true, false, nil},
		"interim alone":             {"POST", "HTTP/1.1 100 Continue\r\n\r\n", false, false, nil},
		"to the end":                {"GET", "HTTP/1.0 200 OK\r\n\r\nwhatever", false, false, nil},
		"coded to the end":          {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", false, false, nil},
		"switched":                  {"GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x00\x01", false, true, nil},
		"tunnel":                    {"CONNECT", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\x00\x01", false, true, nil},
		"tunnel declined":           {"CONNECT", "HTTP/1.1 403 No\r\nContent-Length: 1\r\n\r\nx", true, false, nil},
		"two lengths that agree":    {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", true, false, nil},
		"two lengths that disagree": {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", false, false, ErrMalformed},
		"no reply":                  {"GET", "SSH-2.0-x\r\n\r\n", false, false, ErrMalformed},
		"bad chunk":                 {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", false, false, ErrMalformed},
		"half":                      {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", false, false, nil},
		"endless head":              {"GET", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<17), false, false, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 7, 1 << 20} {
				var r Replies
				require.True(t, r.Complete())
				r.Expect([]byte(c.method))
				require.False(t, r.Complete())
				end := feed(&r, []byte(c.data), size)
				require.Equal(t, c.complete, end >= 0)
				if c.complete {
					require.Equal(t, len(c.data), end)
					// What comes now has nobody asked for.
					r.Feed([]byte("H"))
					require.ErrorIs(t, r.Err(), ErrMalformed)
					require.False(t, r.Complete())
					continue
				}
				require.Equal(t, c.switched, r.Switched())
				require.True(t, errors.Is(r.Err(), c.err), "%v", r.Err())
			}
		})
	}
}

// Replies agree with net/http, as far as that takes what they are given, about where a reply ends.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nrest",
		"HTTP/1.1 304 N\r\nContent-Length: 3\r\n\r\n", "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 204 N\r\n\r\n",
	} {
		f.Add([]byte(s), uint8(3), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8, head bool) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		var whole, r Replies
		whole.Expect([]byte(method))
		r.Expect([]byte(method))
		end := feed(&whole, data, 1)
		got := feed(&r, data, 1+int(size))
		if end >= 0 && got >= 0 {
			require.LessOrEqual(t, end, got)
			require.Less(t, got-end, 1+int(size))
		}
		if end < 0 {
			return
		}
		// Of a reply that is complete here: another reader that understands it has read no other number of bytes.
		src := bytes.NewReader(data)
		br := bufio.NewReader(src)
		for {
			resp, err := http.ReadResponse(br, &http.Request{Method: method})
			if err != nil {
				return
			}
			if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
				_ = resp.Body.Close()
				continue
			}
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if err != nil {
				return
			}
			require.Equal(t, end, len(data)-src.Len()-br.Buffered(), "another end: %q", data)
			return
		}
	})
}
