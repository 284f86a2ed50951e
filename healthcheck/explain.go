package healthcheck

import (
	"slices"
	"strings"
)

// Explanation says why a policy has its value.
type Explanation struct {
	Policy string `json:"policy"` // its name
	Truth  Truth  `json:"truth"`  // its value
	Expr   Expr   `json:"expr"`   // what it says
	// Decided are the elements that decided: if they stay as they are, the policy
	// does, whatever becomes of the others. If Truth is unknown, they are the ones
	// it waits for. None if the policy has its value whatever the elements are.
	Decided []Decider `json:"decided"`
}

// Decider is an element that decided.
type Decider struct {
	Element string `json:"element"` // its name
	Truth   Truth  `json:"truth"`   // its value
}

// String is, for example,
//
//	web is down: db1 down [web1 AND db1]
func (x Explanation) String() string {
	var b strings.Builder
	b.WriteString(x.Policy + " is " + x.Truth.String() + ": ")
	if len(x.Decided) == 0 {
		b.WriteString("whatever the elements are")
	}
	for i, d := range x.Decided {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(d.Element + " " + d.Truth.String())
	}
	return b.String() + " [" + x.Expr.String() + "]"
}

// Explain evaluates the policy named name by the code of [Policies.Eval], and
// says which elements decided.
func (ps *Policies) Explain(name string, element func(string) Truth) (Explanation, bool) {
	r := ps.roots[name]
	if r == nil {
		return Explanation{}, false
	}
	vals := r.values(element)
	t, cases := r.decide(vals)
	x := Explanation{Policy: name, Truth: t, Expr: r.policy.Expr, Decided: []Decider{}}
	var deciders []int32
	switch {
	case cases && t != IsUnknown:
		// No single path through the expression decided. What remains when every
		// element that can be taken for unknown has been, did.
		deciders = r.core(vals, t)
	default:
		r.kleene(vals)
		seen := make([]bool, len(vals))
		deciders = r.why(int32(len(vals)-1), vals, seen, nil)
	}
	slices.Sort(deciders)
	for _, l := range deciders {
		x.Decided = append(x.Decided, Decider{r.nodes[l].name, vals[l]})
	}
	return x, true
}

// why collects the leaves below node i that gave it its value.
func (r *compiled) why(i int32, vals []Truth, seen []bool, out []int32) []int32 {
	if seen[i] {
		return out
	}
	seen[i] = true
	n := &r.nodes[i]
	if n.op == opName {
		return append(out, i)
	}
	// One operand that is down decides an AND, one that is up an OR.
	one := n.op == opAnd && vals[i] == IsDown || n.op == opOr && vals[i] == IsUp
	for _, k := range n.kids {
		if vals[k] != vals[i] && n.op != opNot {
			continue
		}
		out = r.why(k, vals, seen, out)
		if one {
			break
		}
	}
	return out
}

// core returns leaves that alone keep r at t.
func (r *compiled) core(vals []Truth, t Truth) (out []int32) {
	try := slices.Clone(vals)
	for _, l := range r.leaves {
		if vals[l] == IsUnknown {
			continue
		}
		try[l] = IsUnknown
		if got, _ := r.decide(try); got != t {
			try[l] = vals[l]
			out = append(out, l)
		}
	}
	return out
}
