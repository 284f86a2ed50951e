// Package term draws on terminals: in place, without touching what is above.
package term

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A Screen draws lines in place at the end of a terminal's output. W must be set. It must not be copied, and one goroutine at a time may use it.
type Screen struct {
	W     io.Writer
	drawn int // lines that are ours
}

// Draw replaces what was drawn. Lines are cut at the terminal's width, so that none wraps, and at its height.
func (s *Screen) Draw(lines []string) {
	columns, rows, ok := Size(s.W)
	if !ok {
		columns, rows = 80, 24
	}
	lines = lines[:min(len(lines), max(1, rows-1))]
	var b bytes.Buffer
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	} else {
		b.WriteString("\x1b[?25l") // no cursor jumping about
	}
	for _, line := range lines {
		fmt.Fprintf(&b, "%s\x1b[K\n", Clip(line, columns-1))
	}
	b.WriteString("\x1b[J") // what was there of more lines
	s.drawn = len(lines)
	_, _ = s.W.Write(b.Bytes()) // a terminal that is gone is nobody's loss
}

// Close leaves what was drawn, and gives the cursor back.
func (s *Screen) Close() {
	if s.drawn > 0 {
		fmt.Fprint(s.W, "\x1b[?25h\n")
	}
	s.drawn = 0
}

// Bar is a bar of so many cells of which a part is full.
func Bar(part float64, width int) string {
	n := max(0, min(width, int(part*float64(width)+0.5)))
	return strings.Repeat("#", n) + strings.Repeat(".", width-n)
}

// Clip cuts a line so that it does not wrap. Escape sequences such as those of colours take no room; a line that is cut within a colour ends it.
func Clip(line string, columns int) string {
	if utf8.RuneCountInString(line) <= columns {
		return line
	}
	var b strings.Builder
	n, coloured, escape := 0, false, false
	for _, r := range line {
		switch {
		case escape:
			escape = r == '[' || r < '@' || r > '~'
		case r == '\x1b':
			coloured, escape = true, true
		default:
			if n++; n > columns {
				if coloured {
					b.WriteString("\x1b[0m")
				}
				return b.String()
			}
		}
		b.WriteRune(r)
	}
	return b.String()
}
