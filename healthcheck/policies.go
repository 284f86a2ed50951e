package healthcheck

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Errors of [CompilePolicies].
var (
	ErrCycle       = errors.New("healthcheck: policies form a cycle")
	ErrUnknownName = errors.New("healthcheck: no element or policy of this name")
)

// Policy is a named boolean expression over elements and other policies. It sends
// nothing by itself: the elements it uses are probed once it is attached to a
// port, see [Roster], and one probe of an element serves all policies.
type Policy struct {
	Name string `json:"name"` // unique among policies and elements
	Expr Expr   `json:"expr"` // see ParseExpr
}

// Policies is a compiled set of policies. It is immutable and safe for concurrent
// use. The zero Policies is empty.
type Policies struct {
	list  []Policy
	roots map[string]*compiled
}

type pnode struct {
	op   op
	name string // of the element
	kids []int32
}

type compiled struct {
	policy Policy
	// nodes has operands before the operators that use them; the last is the root.
	// They are the policy's own, so that what it costs to evaluate does not depend
	// on how many others there are.
	nodes  []pnode
	leaves []int32 // elements it depends on
	// repeated are those of leaves it depends on in more than one way. Three-valued
	// logic is exact as long as none of them is unknown; else cases are tried.
	repeated []int32
}

// maxCases bounds the repeated unknown elements of which all cases are tried.
// With more of them a policy may be called unknown though it is not.
const maxCases = 12

// CompilePolicies checks and compiles policies over the elements named. It
// reports all faults at once, joined: names used twice, unknown names, and cycles,
// each with the path of policies that leads there.
func CompilePolicies(elements []string, policies ...Policy) (*Policies, error) {
	c := &compiler{
		ps:       &Policies{list: slices.Clone(policies), roots: map[string]*compiled{}},
		roots:    map[string]int32{},
		leaves:   map[string]int32{},
		elements: map[string]bool{},
		byName:   map[string]Policy{},
		state:    map[string]uint8{},
	}
	for _, e := range elements {
		if e == "" {
			c.bad(errors.New(`healthcheck: element "", want a name`))
		}
		c.elements[e] = true
	}
	for _, p := range policies {
		switch {
		case p.Name == "":
			c.bad(fmt.Errorf("healthcheck: policy with expression %q: Name is empty, want a name", p.Expr))
		case c.elements[p.Name]:
			c.bad(fmt.Errorf("healthcheck: policy %q: Name is that of an element, want another", p.Name))
		case c.byName[p.Name].Name != "":
			c.bad(fmt.Errorf("healthcheck: policy %q: Name used twice, want it unique", p.Name))
		case p.Expr.IsZero():
			c.bad(fmt.Errorf("healthcheck: policy %q: Expr is empty, want an expression", p.Name))
		}
		c.byName[p.Name] = p
	}
	if c.errs != nil {
		return nil, errors.Join(c.errs...)
	}
	for _, p := range policies {
		c.path = c.path[:0]
		c.policy(p.Name)
	}
	if c.errs != nil {
		return nil, errors.Join(c.errs...)
	}
	for _, p := range policies {
		c.ps.roots[p.Name] = c.extract(p, c.roots[p.Name])
	}
	return c.ps, nil
}

type compiler struct {
	ps       *Policies
	elements map[string]bool
	byName   map[string]Policy
	nodes    []pnode          // of all policies
	roots    map[string]int32 // of policies
	leaves   map[string]int32 // elements
	state    map[string]uint8 // of a policy: 1 being compiled, 2 done, 3 failed
	path     []string
	errs     []error
}

func (c *compiler) bad(err error) { c.errs = append(c.errs, err) }

// policy compiles the policy named name, and returns its root, or -1.
func (c *compiler) policy(name string) int32 {
	switch c.state[name] {
	case 1:
		i := slices.Index(c.path, name)
		c.bad(fmt.Errorf("%w: %s", ErrCycle, strings.Join(append(slices.Clone(c.path[i:]), name), " → ")))
		return -1
	case 2:
		return c.roots[name]
	case 3:
		return -1
	}
	c.state[name] = 1
	c.path = append(c.path, name)
	root := c.node(c.byName[name].Expr.n)
	c.path = c.path[:len(c.path)-1]
	if root < 0 {
		c.state[name] = 3
		return -1
	}
	c.state[name] = 2
	c.roots[name] = root
	return root
}

func (c *compiler) node(n *node) int32 {
	if n.op == opName {
		if c.elements[n.name] {
			return c.leaf(n.name)
		}
		if _, ok := c.byName[n.name]; ok {
			return c.policy(n.name)
		}
		c.bad(fmt.Errorf("%w: %s", ErrUnknownName, strings.Join(append(slices.Clone(c.path), n.name), " → ")))
		return -1
	}
	kids, ok := make([]int32, len(n.kids)), true
	for i, k := range n.kids {
		kids[i] = c.node(k)
		ok = ok && kids[i] >= 0
	}
	if !ok {
		return -1
	}
	c.nodes = append(c.nodes, pnode{op: n.op, kids: kids})
	return int32(len(c.nodes) - 1)
}

func (c *compiler) leaf(name string) int32 {
	i, ok := c.leaves[name]
	if !ok {
		i = int32(len(c.nodes))
		c.nodes = append(c.nodes, pnode{name: name})
		c.leaves[name] = i
	}
	return i
}

// extract copies what is below root, and finds the leaves, and the ways that lead
// to each.
func (c *compiler) extract(p Policy, root int32) *compiled {
	seen, below := map[int32]bool{root: true}, []int32{root}
	for i := 0; i < len(below); i++ {
		for _, k := range c.nodes[below[i]].kids {
			if !seen[k] {
				seen[k] = true
				below = append(below, k)
			}
		}
	}
	slices.Sort(below)
	r := &compiled{policy: p, nodes: make([]pnode, len(below))}
	at := make(map[int32]int32, len(below))
	for i, b := range below {
		at[b] = int32(i)
		n := c.nodes[b]
		kids := make([]int32, len(n.kids))
		for j, k := range n.kids {
			kids[j] = at[k]
		}
		r.nodes[i] = pnode{n.op, n.name, kids}
	}
	count := make([]uint8, len(below))
	count[len(below)-1] = 1
	// Operators come after their operands, so a node is complete when its turn
	// comes from above.
	for i := int32(len(below)) - 1; i >= 0; i-- {
		n := &r.nodes[i]
		for _, k := range n.kids {
			count[k] = min(2, count[k]+count[i])
		}
		if n.op == opName {
			r.leaves = append(r.leaves, i)
			if count[i] > 1 {
				r.repeated = append(r.repeated, i)
			}
		}
	}
	slices.Reverse(r.leaves)
	slices.Reverse(r.repeated)
	return r
}

// Len returns the number of policies.
func (ps *Policies) Len() int { return len(ps.list) }

// All returns the policies in the order they were given.
func (ps *Policies) All() iter.Seq[Policy] { return slices.Values(ps.list) }

// Policy returns the policy named name.
func (ps *Policies) Policy(name string) (Policy, bool) {
	r := ps.roots[name]
	if r == nil {
		return Policy{}, false
	}
	return r.policy, true
}

// Elements returns the names of the elements that the policy named name depends
// on, directly or through others; nil if there is no such policy.
func (ps *Policies) Elements(name string) []string {
	r := ps.roots[name]
	if r == nil {
		return nil
	}
	out := make([]string, len(r.leaves))
	for i, l := range r.leaves {
		out[i] = r.nodes[l].name
	}
	return out
}

// Eval returns the value of the policy named name, where element says what each
// element is. The result is unknown only if it depends on elements that are.
// There being no such policy is unknown.
func (ps *Policies) Eval(name string, element func(string) Truth) Truth {
	r := ps.roots[name]
	if r == nil {
		return IsUnknown
	}
	t, _ := r.decide(r.values(element))
	return t
}

// values returns the truth of all elements, and room for that of the operators.
func (r *compiled) values(element func(string) Truth) []Truth {
	vals := make([]Truth, len(r.nodes))
	for _, l := range r.leaves {
		vals[l] = element(r.nodes[l].name)
	}
	return vals
}

// decide evaluates r. cases reports whether cases had to be tried.
func (r *compiled) decide(vals []Truth) (t Truth, cases bool) {
	if t = r.kleene(vals); t != IsUnknown {
		return t, false
	}
	var open []int32
	for _, l := range r.repeated {
		if vals[l] == IsUnknown {
			open = append(open, l)
		}
	}
	if len(open) == 0 || len(open) > maxCases {
		return t, false
	}
	return r.cases(vals, open), true
}

// kleene fills in the operators of vals and returns the root's value.
func (r *compiled) kleene(vals []Truth) Truth {
	for i := range vals {
		n := &r.nodes[i]
		switch n.op {
		case opNot:
			vals[i] = vals[n.kids[0]].Not()
		case opAnd, opOr:
			t := vals[n.kids[0]]
			for _, k := range n.kids[1:] {
				if n.op == opAnd {
					t = t.And(vals[k])
				} else {
					t = t.Or(vals[k])
				}
			}
			vals[i] = t
		}
	}
	return vals[len(vals)-1]
}

// cases tries both values of every element in open. If all agree, the policy does
// not depend on them. It leaves vals as it was, but for the operators.
func (r *compiled) cases(vals []Truth, open []int32) Truth {
	if t := r.kleene(vals); t != IsUnknown || len(open) == 0 {
		return t
	}
	l := open[0]
	vals[l] = IsUp
	t := r.cases(vals, open[1:])
	if t != IsUnknown {
		vals[l] = IsDown
		if r.cases(vals, open[1:]) != t {
			t = IsUnknown
		}
	}
	vals[l] = IsUnknown
	return t
}
