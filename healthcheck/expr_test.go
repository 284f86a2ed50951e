package healthcheck

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseExpr(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"(web1 AND db1) OR NOT maint", "web1 AND db1 OR NOT maint"},
		{"web1 and(db1 Or not maint)", "web1 AND (db1 OR NOT maint)"},
		{"((a))", "a"},
		{"a AND b AND c", "a AND b AND c"},
		{"a AND (b AND c)", "a AND b AND c"},
		{"NOT NOT a", "NOT NOT a"},
		{"NOT (a OR b)", "NOT (a OR b)"},
		{"NOT (a AND b) OR c", "NOT (a AND b) OR c"},
		{`"and" OR "a b" OR "q\"\\" OR "x"`, `"and" OR "a b" OR "q\"\\" OR x`},
		{"192.0.2.1:80 AND [2001:db8::1]:80", "192.0.2.1:80 AND [2001:db8::1]:80"},
		{"\ta\nOR\r\nb ", "a OR b"},
	} {
		e, err := ParseExpr(c[0])
		require.NoError(t, err, c[0])
		require.Equal(t, c[1], e.String())
		again, err := ParseExpr(e.String())
		require.NoError(t, err)
		require.True(t, e.Equal(again))
	}
	e, err := ParseExpr("b AND a OR b")
	require.NoError(t, err)
	require.Equal(t, []string{"b", "a"}, e.Names())
	require.True(t, e.Equal(Or(And(Name("b"), Name("a")), Name("b"))))
}

func TestParseExprErrors(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"", `byte 0: got the end, want a name, NOT or "("`},
		{"a AND", `byte 5: got the end, want a name, NOT or "("`},
		{"a b", `byte 2: got "b", want AND, OR or the end`},
		{"(a", `byte 2: got the end, want AND, OR or ")"`},
		{"a)", `byte 1: got ")", want AND, OR or the end`},
		{"a & b", `byte 2: got "&", want a name`},
		{`"a`, `byte 0: got "\"a", want a closing quote`},
		{`""`, `want a name that is not empty`},
		{"AND a", `byte 0: got "AND", want a name`},
		{strings.Repeat("(", 5000), "no more than 200 levels"},
		{strings.Repeat("NOT ", 5000) + "a", "no more than 200 levels"},
		{strings.Repeat("a OR ", 1<<14), "want up to 65536"},
	} {
		_, err := ParseExpr(c[0])
		require.ErrorContains(t, err, c[1], c[0])
	}
}

func TestExprText(t *testing.T) {
	t.Parallel()
	var e Expr
	require.NoError(t, e.UnmarshalText([]byte("a or b")))
	b, err := e.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "a OR b", string(b))
	require.NoError(t, e.UnmarshalText([]byte(" ")))
	require.True(t, e.IsZero())
	require.Empty(t, e.String())
	require.Error(t, e.UnmarshalText([]byte("a or")))
	require.True(t, And().IsZero())
	require.True(t, Not(Expr{}).IsZero())
	require.Equal(t, "a", Or(Name("a"), Name("")).String())
}

func FuzzParseExpr(f *testing.F) {
	f.Add("(web1 AND db1) OR NOT maint")
	f.Add(`"and" OR NOT (a AND "x\"y")`)
	f.Add("((((a))))")
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseExpr(s)
		if err != nil {
			return
		}
		again, err := ParseExpr(e.String())
		if err != nil && len(e.String()) > maxExprLen {
			return // needless quotes may be fewer, escapes never more, but be safe
		}
		require.NoError(t, err)
		require.True(t, e.Equal(again), "%q became %q", s, e.String())
	})
}

func mustPolicies(t testing.TB, elements string, exprs ...string) *Policies {
	var ps []Policy
	for _, x := range exprs {
		name, text, _ := strings.Cut(x, "=")
		e, err := ParseExpr(text)
		require.NoError(t, err)
		ps = append(ps, Policy{name, e})
	}
	p, err := CompilePolicies(strings.Fields(elements), ps...)
	require.NoError(t, err)
	return p
}

func truths(s string) func(string) Truth {
	m := map[string]Truth{}
	for _, w := range strings.Fields(s) {
		name, v, _ := strings.Cut(w, "=")
		m[name] = map[string]Truth{"up": IsUp, "down": IsDown}[v]
	}
	return func(name string) Truth { return m[name] }
}

func TestPolicyThreeValued(t *testing.T) {
	t.Parallel()
	ps := mustPolicies(t, "web1 db1 maint a b", "p=(web1 AND db1) OR NOT maint", "q=p AND NOT a", "taut=a OR NOT a", "contra=a AND NOT a AND b", "same=a AND b OR NOT a AND b")
	for _, c := range []struct {
		policy, in string
		want       Truth
		why        string
	}{
		{"p", "web1=up db1=up maint=up", IsUp, "p is up: web1 up, db1 up [web1 AND db1 OR NOT maint]"},
		{"p", "web1=up db1=up", IsUp, "p is up: web1 up, db1 up [web1 AND db1 OR NOT maint]"},
		{"p", "web1=down db1=up maint=up", IsDown, "p is down: web1 down, maint up [web1 AND db1 OR NOT maint]"},
		{"p", "web1=down maint=down", IsUp, "p is up: maint down [web1 AND db1 OR NOT maint]"},
		{"p", "web1=up maint=up", IsUnknown, "p is unknown: db1 unknown [web1 AND db1 OR NOT maint]"},
		{"p", "", IsUnknown, "p is unknown: web1 unknown, db1 unknown, maint unknown [web1 AND db1 OR NOT maint]"},
		{"q", "web1=up db1=up a=up", IsDown, "q is down: a up [p AND NOT a]"},
		{"q", "web1=up db1=up a=down", IsUp, "q is up: web1 up, db1 up, a down [p AND NOT a]"},
		{"taut", "", IsUp, "taut is up: whatever the elements are [a OR NOT a]"},
		{"contra", "", IsDown, "contra is down: whatever the elements are [a AND NOT a AND b]"},
		{"same", "b=up", IsUp, "same is up: b up [a AND b OR NOT a AND b]"},
		{"same", "b=down", IsDown, "same is down: b down [a AND b OR NOT a AND b]"},
		{"same", "", IsUnknown, ""},
		{"nobody", "", IsUnknown, ""},
	} {
		require.Equal(t, c.want, ps.Eval(c.policy, truths(c.in)), "%s with %s", c.policy, c.in)
		x, ok := ps.Explain(c.policy, truths(c.in))
		require.Equal(t, c.policy != "nobody", ok)
		if c.why != "" {
			require.Equal(t, c.why, x.String(), "%s with %s", c.policy, c.in)
		}
	}
	require.Equal(t, []string{"web1", "db1", "maint", "a"}, ps.Elements("q"))
	require.Nil(t, ps.Elements("nobody"))
	require.Equal(t, 5, ps.Len())
	n := 0
	for p := range ps.All() {
		got, ok := ps.Policy(p.Name)
		require.True(t, ok)
		require.Equal(t, p, got)
		n++
	}
	require.Equal(t, 5, n)
	require.Equal(t, IsUnknown, new(Policies).Eval("p", truths("")))
}

func TestPolicyErrorsAllAtOnce(t *testing.T) {
	t.Parallel()
	name := func(n, e string) Policy {
		x, err := ParseExpr(e)
		require.NoError(t, err)
		return Policy{n, x}
	}
	_, err := CompilePolicies([]string{"e"}, name("a", "e AND b"), name("b", "NOT c"), name("c", "e OR a"), name("self", "self"), name("d", "e AND nobody"), name("x", "d OR missing"))
	require.ErrorIs(t, err, ErrCycle)
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorContains(t, err, "a → b → c → a")
	require.ErrorContains(t, err, "self → self")
	require.ErrorContains(t, err, "d → nobody")
	require.ErrorContains(t, err, "x → missing")
	_, err = CompilePolicies([]string{"e", ""}, name("e", "e"), name("p", "e"), name("p", "e"), Policy{Name: "empty"}, Policy{})
	for _, want := range []string{`element ""`, `policy "e": Name is that of an element`, `policy "p": Name used twice`, `policy "empty": Expr is empty`, "Name is empty"} {
		require.ErrorContains(t, err, want)
	}
}

// A chain of policies each using the one before twice has 2^60 paths.
func TestPolicySharedNodes(t *testing.T) {
	t.Parallel()
	ps := []Policy{{"p0", Name("e")}}
	for i := 1; i <= 60; i++ {
		prev := Name(fmt.Sprint("p", i-1))
		ps = append(ps, Policy{fmt.Sprint("p", i), And(prev, Or(prev, Not(prev)))})
	}
	p, err := CompilePolicies([]string{"e"}, ps...)
	require.NoError(t, err)
	require.Equal(t, IsUp, p.Eval("p60", truths("e=up")))
	require.Equal(t, IsUnknown, p.Eval("p60", truths("")))
	x, _ := p.Explain("p60", truths("e=down"))
	require.Equal(t, []Decider{{"e", IsDown}}, x.Decided)
}

// slowEval tries every value of every unknown element.
func slowEval(n *node, element func(string) Truth) Truth {
	var names []string
	for _, x := range (Expr{n}).Names() {
		if element(x) == IsUnknown {
			names = append(names, x)
		}
	}
	var eval func(n *node, m map[string]bool) bool
	eval = func(n *node, m map[string]bool) bool {
		switch n.op {
		case opNot:
			return !eval(n.kids[0], m)
		case opAnd:
			for _, k := range n.kids {
				if !eval(k, m) {
					return false
				}
			}
			return true
		case opOr:
			for _, k := range n.kids {
				if eval(k, m) {
					return true
				}
			}
			return false
		}
		if t := element(n.name); t != IsUnknown {
			return t == IsUp
		}
		return m[n.name]
	}
	ups := 0
	for bits := range 1 << len(names) {
		m := map[string]bool{}
		for i, x := range names {
			m[x] = bits>>i&1 == 1
		}
		if eval(n, m) {
			ups++
		}
	}
	switch ups {
	case 0:
		return IsDown
	case 1 << len(names):
		return IsUp
	}
	return IsUnknown
}

// exprFrom makes an expression over a to f out of arbitrary bytes.
func exprFrom(in *[]byte, depth int) Expr {
	take := func() byte {
		if len(*in) == 0 {
			return 0
		}
		b := (*in)[0]
		*in = (*in)[1:]
		return b
	}
	b := take()
	if depth == 0 || b < 80 {
		return Name(string(rune('a' + b%6)))
	}
	switch b % 3 {
	case 0:
		return Not(exprFrom(in, depth-1))
	case 1:
		return And(exprFrom(in, depth-1), exprFrom(in, depth-1))
	}
	return Or(exprFrom(in, depth-1), exprFrom(in, depth-1))
}

func FuzzPolicyEval(f *testing.F) {
	f.Add([]byte{100, 1, 2, 101, 200, 3, 4, 5, 0, 1, 2}, uint16(12))
	f.Add([]byte("any bytes will do here, the longer the better ~~~~~~~~"), uint16(700))
	f.Fuzz(func(t *testing.T, in []byte, assign uint16) {
		e := exprFrom(&in, 6)
		element := func(name string) Truth {
			a := assign
			for range name[0] - 'a' {
				a /= 3
			}
			return Truth(a % 3)
		}
		ps, err := CompilePolicies([]string{"a", "b", "c", "d", "e", "f"}, Policy{"p", e})
		require.NoError(t, err)
		want := slowEval(e.n, element)
		require.Equal(t, want, ps.Eval("p", element), "%v", e)
		x, _ := ps.Explain("p", element)
		require.Equal(t, want, x.Truth)
		if want == IsUnknown {
			return
		}
		// The deciders alone decide.
		only := map[string]Truth{}
		for _, d := range x.Decided {
			only[d.Element] = d.Truth
		}
		require.Equal(t, want, slowEval(e.n, func(name string) Truth { return only[name] }), "%v", x)
	})
}

// What a policy costs does not depend on how many others there are.
func TestPolicyCostIsItsOwn(t *testing.T) {
	var elements []string
	var ps []Policy
	for i := range 20_000 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		elements = append(elements, a, b)
		ps = append(ps, Policy{fmt.Sprint("p", i), And(Name(a), Not(Name(b)))})
	}
	p, err := CompilePolicies(elements, ps...)
	require.NoError(t, err)
	require.LessOrEqual(t, len(p.roots["p19999"].nodes), 4)
	require.Equal(t, IsUp, p.Eval("p19999", func(e string) Truth {
		if e == "a19999" {
			return IsUp
		}
		return IsDown
	}))
	require.Equal(t, []string{"a19999", "b19999"}, p.Elements("p19999"))
}
