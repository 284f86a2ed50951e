package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/internal/enum"
)

// Outcome is how a look-up ended.
type Outcome uint8

const (
	// NotVIP: no enabled rule names the destination. The zero Outcome.
	NotVIP Outcome = iota
	// Malformed: the packet's addresses are missing or of two families.
	Malformed
	// NoMatch: the destination is a VIP, but none of its rules holds the packet.
	NoMatch
	// Matched: a rule holds the packet.
	Matched
)

var outcomeNames = enum.Wrapping[Outcome](ErrInvalid, "outcome", "not a VIP", "malformed packet", "no match", "match")

// String returns the outcome in words.
func (o Outcome) String() string { return outcomeNames.String(o) }

// AppendText implements encoding.TextAppender.
func (o Outcome) AppendText(b []byte) ([]byte, error) { return outcomeNames.Append(b, o) }

// MarshalText implements encoding.TextMarshaler.
func (o Outcome) MarshalText() ([]byte, error) { return o.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Outcome) UnmarshalText(text []byte) error { return outcomeNames.Parse(o, text) }

// Finding is what a look-up found about one rule.
type Finding uint8

const (
	// FindingNone is the finding about a rule that was not considered.
	FindingNone Finding = iota
	// ClientOutside: the packet's protocol and port are the rule's, its source is not
	// among the rule's clients.
	ClientOutside
	// RuleDisabled: the rule would hold the packet, but is disabled.
	RuleDisabled
	// Winner: this is the rule.
	Winner
)

var findingNames = enum.Wrapping[Finding](ErrInvalid, "finding", "not considered", "client outside", "disabled", "winner")

// String returns the finding in words.
func (f Finding) String() string { return findingNames.String(f) }

// AppendText implements encoding.TextAppender.
func (f Finding) AppendText(b []byte) ([]byte, error) { return findingNames.Append(b, f) }

// MarshalText implements encoding.TextMarshaler.
func (f Finding) MarshalText() ([]byte, error) { return f.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Finding) UnmarshalText(text []byte) error { return findingNames.Parse(f, text) }

// Considered is one rule that a look-up considered.
type Considered[V any] struct {
	Rule    *Rule[V] // must not be changed
	Finding Finding  // what was found of it
}

// Explanation answers why a packet went where it did. Its zero value explains that the
// zero packet is for no VIP.
type Explanation[V any] struct {
	Packet  Packet       // that was asked about
	Outcome Outcome      // what the look-up came to
	VIP     netip.Prefix // that owns the destination; zero with NotVIP and Malformed
	Rule    *Rule[V]     // the winner; nil unless Matched

	// Considered is the rules for the packet's VIP, protocol and port in order of
	// precedence, ending with the winner, and disabled rules that would have come before
	// it, those for longer VIP prefixes included. With StrictTier it has no enabled rules of
	// later tiers.
	Considered []Considered[V]

	// Passed counts the VIP's other enabled rules: for other protocols and ports, or less
	// specific than the rule that ended the search.
	Passed int
}

// Explain looks p up as [Table.Lookup] does, with the same code, and says how it went.
func (t *Table[V]) Explain(p Packet) Explanation[V] {
	e := Explanation[V]{Packet: p}
	dst, f := split(p.Dst.Addr())
	if _, g := split(p.Src.Addr()); f != g || f == noFamily {
		e.Outcome = Malformed
		return e
	}
	if t == nil {
		return e
	}
	var ranks []uint32
	d, i, hit := t.find(&p, func(rows []uint32) {
		for ; len(rows) > 1; rows = rows[2:] {
			for r := rows[0]; r < rows[1]; r++ {
				ranks = append(ranks, r)
			}
		}
	})
	var s *service[V]
	if d != nil {
		s = d.services[i]
		e.VIP, e.Outcome = s.vipPrefix(), NoMatch
		slices.Sort(ranks)
		for _, r := range ranks {
			if hit == 0 || r < hit-1 {
				e.Considered = append(e.Considered, Considered[V]{s.rules[r], ClientOutside})
			}
		}
		if hit != 0 {
			e.Outcome, e.Rule = Matched, s.rules[hit-1]
			e.Considered = append(e.Considered, Considered[V]{e.Rule, Winner})
		}
		e.Passed = len(s.rules) - len(e.Considered)
	}
	off := &t.off[f-1]
	for _, l := range off.lens {
		if s != nil && l.bits < s.bits {
			break
		}
		if o := off.service(f, f.mask(dst, int(l.bits)), l.bits); o != nil {
			e.addDisabled(o.rules)
		}
	}
	return e
}

// addDisabled puts the disabled rules of a VIP that would have come before the winner in
// their places.
func (e *Explanation[V]) addDisabled(rules []*Rule[V]) {
	for _, r := range rules {
		if r.Internal == e.Packet.FromProxy && r.Match.Contains(e.Packet) &&
			(e.Rule == nil || r.Match.Compare(e.Rule.Match) <= 0) {
			e.Considered = append(e.Considered, Considered[V]{r, RuleDisabled})
		}
	}
	slices.SortStableFunc(e.Considered, func(a, b Considered[V]) int {
		return cmp.Or(a.Rule.Match.Compare(b.Rule.Match), cmp.Compare(a.Finding, b.Finding))
	})
}

// String renders the explanation for people, a line for each step.
func (e Explanation[V]) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %v\n", e.Packet, e.Outcome)
	if e.VIP.IsValid() {
		fmt.Fprintf(&b, "  VIP %v owns the destination\n", e.VIP)
	}
	for _, c := range e.Considered {
		switch c.Finding {
		case ClientOutside:
			fmt.Fprintf(&b, "  skip  %s (%v): client %v is outside\n", c.Rule.Name, c.Rule.Match, e.Packet.Src.Addr().Unmap())
		case Winner:
			fmt.Fprintf(&b, "  match %s (%v)\n", c.Rule.Name, c.Rule.Match)
		default:
			fmt.Fprintf(&b, "  skip  %s (%v): %v\n", c.Rule.Name, c.Rule.Match, c.Finding)
		}
	}
	switch {
	case e.Passed == 1:
		b.WriteString("  1 other rule of the VIP is for other traffic or less specific\n")
	case e.Passed > 1:
		fmt.Fprintf(&b, "  %d other rules of the VIP are for other traffic or less specific\n", e.Passed)
	}
	return b.String()
}
