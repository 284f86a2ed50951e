package l7

import (
	"fmt"
	"strconv"
	"strings"
)

// Considered is one row that was tried.
type Considered struct {
	Rule          *Rule   // must not be changed
	First, Second Finding // of the rule's methods
}

// Explanation answers why a request was decided as it was. The zero Explanation is that of no
// request.
type Explanation struct {
	Decision Decision // as Classify has it

	// Considered is the rows that were tried, in index order: the last of them decided, if
	// any did, or could not be decided. It is empty if the request was refused, or if the
	// head is not complete and must be.
	Considered []Considered

	// Passed counts the rows that were not tried.
	Passed int
}

// Explain classifies as [Policy.Classify] does, with the same code, and says how it went.
func (p *Policy) Explain(in Input, b []byte) Explanation {
	var e Explanation
	c := classifier{policy: p, in: in}
	c.visit = func(row int, first, second Finding) {
		e.Considered = append(e.Considered, Considered{&p.rules[row], first, second})
	}
	e.Decision = c.classify(b)
	if e.Decision.Verdict == Refused {
		e.Considered = nil // a row met a broken body
	}
	e.Passed = len(p.rules) - len(e.Considered)
	return e
}

// String renders the explanation for people, a line for each row.
func (e Explanation) String() string {
	var b strings.Builder
	b.WriteString(e.Decision.Verdict.String())
	switch e.Decision.Verdict {
	case NeedMore:
	case Refused:
		fmt.Fprintf(&b, ": %v", e.Decision.Err)
	default:
		fmt.Fprintf(&b, ": %v", e.Decision.Action)
	}
	b.WriteByte('\n')
	for _, c := range e.Considered {
		what := map[Finding]string{Holds: "match", Undecided: "wait "}[and(c.First, c.Second)]
		if what == "" {
			what = "skip "
		}
		fmt.Fprintf(&b, "  %s row %d", what, c.Rule.Index)
		if c.Rule.Name != "" {
			fmt.Fprintf(&b, " %q", c.Rule.Name)
		}
		sep := ": "
		for _, m := range []struct {
			Method
			Finding
		}{{c.Rule.First, c.First}, {c.Rule.Second, c.Second}} {
			if m.Finding != NotAsked && m.Kind != Always {
				fmt.Fprintf(&b, "%s%v %v", sep, m.Method, m.Finding)
				sep = ", "
			}
		}
		b.WriteByte('\n')
	}
	switch {
	case e.Passed == 1:
		b.WriteString("  1 row was not tried\n")
	case e.Passed > 1:
		fmt.Fprintf(&b, "  %d rows were not tried\n", e.Passed)
	}
	return b.String()
}

// String renders the method for people, as in: header x-tag "one".
func (m Method) String() string {
	s := m.Kind.String()
	if m.Key != "" {
		s += " " + m.Key
	}
	if m.Value != "" {
		s += " " + strconv.Quote(m.Value)
	}
	if m.In != InHead {
		s += " in " + m.In.String()
	}
	return s
}

// String renders the action for people, as in: farm "web".
func (a Action) String() string {
	s := a.Do.String()
	if a.Farm != "" {
		s += " " + strconv.Quote(a.Farm)
	}
	if a.Location != "" {
		s += " " + strconv.Quote(a.Location)
	}
	if a.Code != 0 {
		s += " " + strconv.Itoa(a.Code)
	}
	return s
}
