package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/term"
)

func someFrame(at time.Duration) frame {
	f := frame{at: at, end: 12 * time.Second, phase: "2/5 something", packets: 1234, failed: 3}
	for i, name := range []string{"web1", "web2", "web3", "shop1", "shop2", "echo1", "echo2"} {
		f.rows = append(f.rows, row{Server: name, Weight: i + 1, Wanted: 0.5, Share: 0.25, State: "up", Connections: 1000000, Open: 12345})
	}
	return f
}

func TestScreenFitsAndStays(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out, on: term.Screen{W: &out}}
	s.event(0, "before the first frame")
	require.Empty(t, out.String())
	for i := range 20 {
		s.frame(someFrame(time.Duration(i) * time.Second))
		s.event(time.Duration(i)*time.Second, strings.Repeat("a long event ", 20))
		text := s.text(80)
		require.Len(t, text, screenHeight, "always as many lines")
		for _, line := range text[:len(text)-latestEvents] {
			require.LessOrEqual(t, len(line), 79, "%q", line)
		}
	}
	s.close()
	require.True(t, strings.HasSuffix(out.String(), "\x1b[?25h\n"), "the cursor is back")
	for _, line := range strings.Split(out.String(), "\n") {
		plain := strings.NewReplacer("\x1b[K", "", "\x1b[J", "", "\x1b[?25l", "", "\x1b[?25h", "", "\x1b[18A", "").Replace(line)
		require.LessOrEqual(t, len(plain), 79, "%q", plain)
	}
}

func TestLinesArePlain(t *testing.T) {
	var out bytes.Buffer
	l := newDisplay(&out)
	l.event(1500*time.Millisecond, "something happened")
	for i := range 12 {
		l.frame(someFrame(time.Duration(i) * 200 * time.Millisecond))
	}
	l.close()
	require.NotContains(t, out.String(), "\x1b")
	require.Equal(t, "  1.5s  something happened\n", out.String()[:strings.Index(out.String(), "\n")+1])
	require.Equal(t, 3, strings.Count(out.String(), "\n"), "one line a second")
}
