package l7

import (
	"bytes"
	"strings"
)

// glob is a text with a star before, behind, both or neither.
type glob struct {
	text          string // in lower case if fold
	before, after bool
	fold          bool
}

func newGlob(s string, fold bool) glob {
	g := glob{fold: fold}
	s, g.before = strings.CutPrefix(s, "*")
	s, g.after = strings.CutSuffix(s, "*")
	if s == "" && g.before {
		g.after = true
	}
	if fold {
		s = strings.ToLower(s)
	}
	g.text = s
	return g
}

func (g *glob) match(b []byte) bool {
	n := len(g.text)
	switch {
	case len(b) < n:
		return false
	case !g.before && !g.after:
		return len(b) == n && g.at(b)
	case !g.before:
		return g.at(b[:n])
	case !g.after:
		return g.at(b[len(b)-n:])
	case !g.fold:
		return bytes.Contains(b, []byte(g.text))
	}
	for ; len(b) >= n; b = b[1:] {
		if g.at(b[:n]) {
			return true
		}
		if len(b) == 0 {
			break
		}
	}
	return false
}

func (g *glob) at(b []byte) bool {
	if g.fold {
		return equalFold(b, g.text)
	}
	return string(b) == g.text
}
