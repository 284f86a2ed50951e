package term

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{W: &out}
	s.Close()
	require.Empty(t, out.String(), "nothing was drawn")
	s.Draw([]string{"one", strings.Repeat("long ", 40)})
	s.Draw([]string{"two"})
	s.Close()
	require.Equal(t, "\x1b[?25lone\x1b[K\n"+strings.Repeat("long ", 40)[:79]+"\x1b[K\n\x1b[J\x1b[2Atwo\x1b[K\n\x1b[J\x1b[?25h\n", out.String())
	out.Reset()
	s.Draw(make([]string, 100))
	require.Equal(t, 23, strings.Count(out.String(), "\n"), "no higher than the terminal")
}

func TestClip(t *testing.T) {
	require.Equal(t, "äöü", Clip("äöüx", 3))
	require.Equal(t, "", Clip("abc", 0))
	require.Equal(t, "\x1b[31mred\x1b[0m", Clip("\x1b[31mred\x1b[0m", 3), "colours take no room")
	require.Equal(t, "\x1b[31mre\x1b[0m", Clip("\x1b[31mred\x1b[0m", 2))
	require.Equal(t, "##..", Bar(0.5, 4))
	require.Equal(t, "####", Bar(7, 4))
	require.Equal(t, "....", Bar(-1, 4))
	_, _, ok := Size(&bytes.Buffer{})
	require.False(t, ok)
}
