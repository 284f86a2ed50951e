package healthcheck

import (
	"errors"
	"fmt"

	"github.com/lbprim/lbprim/internal/enum"
)

// MaxReply is how much of a reply is looked at, in bytes.
const MaxReply = 100_000

// The bounds of a match list.
const (
	maxMatchText  = 4096
	maxMatchRules = 1024
)

// MatchKind says where in a reply a [MatchRule] looks.
type MatchKind uint8

const (
	// MatchSimple: Text, anywhere.
	MatchSimple MatchKind = iota
	// MatchCompound: Text and, anywhere after it, End; the hit is from the one to
	// the other.
	MatchCompound
	// MatchStart: the reply begins with Text.
	MatchStart
	// MatchEnd: the reply ends with Text.
	MatchEnd
)

var matchKindNames = enum.Of[MatchKind]("healthcheck: matchKind", "simple", "compound", "start", "end")

// String returns the name of k.
func (k MatchKind) String() string { return matchKindNames.String(k) }

// AppendText implements [encoding.TextAppender].
func (k MatchKind) AppendText(b []byte) ([]byte, error) { return matchKindNames.Append(b, k) }

// MarshalText implements [encoding.TextMarshaler].
func (k MatchKind) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *MatchKind) UnmarshalText(text []byte) error { return matchKindNames.Parse(k, text) }

// MatchRule is one text to look for, and what it means. It is a plain value. Texts
// are compared byte by byte.
type MatchRule struct {
	Kind MatchKind `json:"kind"` // how Text is looked for
	Text string    `json:"text"` // 1 to 4,096 bytes, or the first text of a compound rule
	// End is the second text of a compound rule, and empty in others.
	End string `json:"end,omitempty"`
	// Verdict is Pass or Fail.
	Verdict Verdict `json:"verdict"`
}

// MatchList decides from the content of a reply. Of all hits of all rules the one
// that starts earliest decides, whatever the order of the rules; of those that
// start together the longest, since it contains the others; and if two are the
// same, a Fail. A compound rule hits from its first Text to the first End after
// that. Only the first 100,000 bytes ([MaxReply]) are looked at; in a longer reply
// nothing is at its end.
//
// A MatchList is immutable and safe for concurrent use. Make one with
// [NewMatchList].
type MatchList struct {
	rules    []MatchRule
	fallback Verdict
	root     [256]int32 // the transitions of node 0
	nodes    []acNode
	outs     []acOut
	starts   bool // there are MatchStart rules
}

// acNode is a node of an Aho-Corasick automaton.
type acNode struct {
	edges []acEdge
	fail  int32
	depth int32
	out   int32 // first of its own outputs, or -1
	link  int32 // the next node along the fail links that has outputs, or -1
}

type acEdge struct {
	c  byte
	to int32
}

// acOut is a text that ends at a node.
type acOut struct {
	rule int32
	role acRole
	next int32 // further output of the same node, or -1
}

type acRole uint8

const (
	roleSimple acRole = iota
	roleBegin
	roleEnd // of a compound rule
	roleTail
)

// NewMatchList compiles rules. fallback, Pass or Fail, is the verdict when none
// hits. All faults are reported at once, joined.
func NewMatchList(fallback Verdict, rules ...MatchRule) (*MatchList, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("healthcheck: match list: "+format, args...))
	}
	if fallback != Pass && fallback != Fail {
		bad("default verdict %v, want pass or fail", fallback)
	}
	if len(rules) > maxMatchRules {
		bad("%d rules, want up to %d", len(rules), maxMatchRules)
	}
	for i, r := range rules {
		if int(r.Kind) >= matchKindNames.Len() {
			bad("rule %d: Kind %v, want simple, compound, start or end", i, r.Kind)
		}
		if r.Verdict != Pass && r.Verdict != Fail {
			bad("rule %d: Verdict %v, want pass or fail", i, r.Verdict)
		}
		if n := len(r.Text); n == 0 || n > maxMatchText {
			bad("rule %d: Text of %d bytes, want 1 to %d", i, n, maxMatchText)
		}
		if n := len(r.End); r.Kind == MatchCompound && (n == 0 || n > maxMatchText) {
			bad("rule %d: End of %d bytes, want 1 to %d", i, n, maxMatchText)
		} else if r.Kind != MatchCompound && n != 0 {
			bad("rule %d: End %q in a rule of kind %v, want it empty", i, clip(r.End), r.Kind)
		}
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	l := &MatchList{rules: append([]MatchRule(nil), rules...), fallback: fallback}
	l.nodes = append(l.nodes, acNode{out: -1, link: -1})
	for i, r := range rules {
		i := int32(i)
		switch r.Kind {
		case MatchSimple:
			l.insert(r.Text, i, roleSimple)
		case MatchCompound:
			l.insert(r.Text, i, roleBegin)
			l.insert(r.End, i, roleEnd)
		case MatchEnd:
			l.insert(r.Text, i, roleTail)
		case MatchStart:
			l.starts = true
		}
	}
	l.link()
	return l, nil
}

// Rules returns the rules. The slice is the caller's.
func (l *MatchList) Rules() []MatchRule { return append([]MatchRule(nil), l.rules...) }

func (l *MatchList) insert(text string, rule int32, role acRole) {
	at := int32(0)
	for i := range len(text) {
		to := l.edge(at, text[i])
		if to < 0 {
			to = int32(len(l.nodes))
			l.nodes = append(l.nodes, acNode{depth: int32(i + 1), out: -1, link: -1})
			l.nodes[at].edges = append(l.nodes[at].edges, acEdge{text[i], to})
		}
		at = to
	}
	l.outs = append(l.outs, acOut{rule, role, l.nodes[at].out})
	l.nodes[at].out = int32(len(l.outs) - 1)
}

func (l *MatchList) edge(at int32, c byte) int32 {
	for _, e := range l.nodes[at].edges {
		if e.c == c {
			return e.to
		}
	}
	return -1
}

// link sets the fail links, in breadth first order.
func (l *MatchList) link() {
	var queue []int32
	for _, e := range l.nodes[0].edges {
		l.root[e.c] = e.to
		queue = append(queue, e.to)
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		n := &l.nodes[at]
		if f := n.fail; l.nodes[f].out >= 0 {
			n.link = f
		} else {
			n.link = l.nodes[f].link
		}
		for _, e := range n.edges {
			l.nodes[e.to].fail = l.step(n.fail, e.c)
			queue = append(queue, e.to)
		}
	}
}

// step returns the node after c.
func (l *MatchList) step(at int32, c byte) int32 {
	for at != 0 {
		if to := l.edge(at, c); to >= 0 {
			return to
		}
		at = l.nodes[at].fail
	}
	return l.root[c]
}
