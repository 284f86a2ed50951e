package healthcheck

import (
	"fmt"
	"strings"
)

// op is the kind of a node of an expression.
type op uint8

const (
	opName op = iota
	opNot
	opAnd
	opOr
)

// Expr is a boolean expression over the names of elements and policies:
//
//	(web1 AND db1) OR NOT maint
//
// NOT binds tighter than AND, AND tighter than OR; the words are not case
// sensitive, names are. A name of letters, digits and _ . : - / @ [ ] % that is
// none of the words stands for itself; any other is written between double
// quotes, in which \ escapes " and \. The zero Expr is empty and evaluates to
// unknown. An Expr is immutable and may be copied and shared.
type Expr struct {
	n *node
}

type node struct {
	op   op
	name string
	kids []*node // one for NOT, two or more for AND and OR
}

// Name returns the expression that is just a name; the zero Expr for "".
func Name(name string) Expr {
	if name == "" {
		return Expr{}
	}
	return Expr{&node{op: opName, name: name}}
}

// Not returns the negation of e.
func Not(e Expr) Expr { return join(opNot, e) }

// And returns the conjunction of es.
func And(es ...Expr) Expr { return join(opAnd, es...) }

// Or returns the disjunction of es.
func Or(es ...Expr) Expr { return join(opOr, es...) }

// join makes a node. Chains of one operator are flat, as they are written.
func join(o op, es ...Expr) Expr {
	n := &node{op: o}
	for _, e := range es {
		switch {
		case e.n == nil:
		case o != opNot && e.n.op == o:
			n.kids = append(n.kids, e.n.kids...)
		default:
			n.kids = append(n.kids, e.n)
		}
	}
	if len(n.kids) == 0 {
		return Expr{}
	}
	if o != opNot && len(n.kids) == 1 {
		return Expr{n.kids[0]}
	}
	return Expr{n}
}

// IsZero reports whether e is empty.
func (e Expr) IsZero() bool { return e.n == nil }

// Names returns the names in e, each once, in the order they are written.
func (e Expr) Names() []string {
	var out []string
	seen := map[string]bool{}
	var walk func(*node)
	walk = func(n *node) {
		if n.op == opName && !seen[n.name] {
			seen[n.name] = true
			out = append(out, n.name)
		}
		for _, k := range n.kids {
			walk(k)
		}
	}
	if e.n != nil {
		walk(e.n)
	}
	return out
}

// Equal reports whether e and f are written alike, up to blanks and needless
// parentheses.
func (e Expr) Equal(f Expr) bool { return equalNodes(e.n, f.n) }

func equalNodes(a, b *node) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.op != b.op || a.name != b.name || len(a.kids) != len(b.kids) {
		return false
	}
	for i := range a.kids {
		if !equalNodes(a.kids[i], b.kids[i]) {
			return false
		}
	}
	return true
}

// String returns e in the text form, with the parentheses it needs.
func (e Expr) String() string {
	b, _ := e.AppendText(nil)
	return string(b)
}

// AppendText implements [encoding.TextAppender].
func (e Expr) AppendText(b []byte) ([]byte, error) {
	if e.n == nil {
		return b, nil
	}
	return e.n.append(b, opOr), nil
}

// MarshalText implements [encoding.TextMarshaler].
func (e Expr) MarshalText() ([]byte, error) { return e.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler]. An empty text is the zero
// Expr.
func (e *Expr) UnmarshalText(text []byte) error {
	if len(strings.TrimSpace(string(text))) == 0 {
		*e = Expr{}
		return nil
	}
	f, err := ParseExpr(string(text))
	if err == nil {
		*e = f
	}
	return err
}

// append writes n where what is looser than the operator outer needs parentheses.
func (n *node) append(b []byte, outer op) []byte {
	if n.op > outer {
		b = append(b, '(')
		b = n.append(b, opOr)
		return append(b, ')')
	}
	switch n.op {
	case opName:
		return appendName(b, n.name)
	case opNot:
		b = append(b, "NOT "...)
		return n.kids[0].append(b, opNot)
	}
	word := " AND "
	if n.op == opOr {
		word = " OR "
	}
	for i, k := range n.kids {
		if i > 0 {
			b = append(b, word...)
		}
		b = k.append(b, n.op-1)
	}
	return b
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_.:-/@[]%", c) >= 0
}

func isWord(s string) bool {
	return strings.EqualFold(s, "AND") || strings.EqualFold(s, "OR") || strings.EqualFold(s, "NOT")
}

func appendName(b []byte, name string) []byte {
	plain := name != "" && !isWord(name)
	for i := 0; i < len(name) && plain; i++ {
		plain = isPlain(name[i])
	}
	if plain {
		return append(b, name...)
	}
	b = append(b, '"')
	for i := range len(name) {
		if name[i] == '"' || name[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

// The largest expression that is parsed. Both bounds are far beyond what a person
// writes, and keep hostile input from exhausting the stack.
const (
	maxExprDepth = 200
	maxExprLen   = 1 << 16
)

// ParseExpr parses the text form of an expression. The error says at which byte
// it is wrong and what would be valid.
func ParseExpr(s string) (Expr, error) {
	if len(s) > maxExprLen {
		return Expr{}, fmt.Errorf("healthcheck: expression of %d bytes, want up to %d", len(s), maxExprLen)
	}
	p := parser{s: s}
	if err := p.next(); err != nil {
		return Expr{}, err
	}
	e, err := p.or(0)
	if err != nil {
		return Expr{}, err
	}
	if p.tok != tokEnd {
		return Expr{}, p.fail("AND, OR or the end")
	}
	return e, nil
}

type token uint8

const (
	tokEnd token = iota
	tokName
	tokAnd
	tokOr
	tokNot
	tokOpen
	tokClose
)

type parser struct {
	s    string
	pos  int // after tok
	at   int // where tok begins
	tok  token
	name string
}

func (p *parser) fail(want string) error {
	got := "the end"
	if p.at < len(p.s) {
		got = fmt.Sprintf("%q", p.s[p.at:min(p.pos, p.at+20)])
	}
	return fmt.Errorf("healthcheck: expression %q: byte %d: got %s, want %s", clip(p.s), p.at, got, want)
}

func clip(s string) string {
	if len(s) > maxShown {
		return s[:maxShown] + "…"
	}
	return s
}

// next reads the next token.
func (p *parser) next() error {
	for p.pos < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.pos]) >= 0 {
		p.pos++
	}
	p.at = p.pos
	if p.pos == len(p.s) {
		p.tok = tokEnd
		return nil
	}
	c := p.s[p.pos]
	switch {
	case c == '(':
		p.pos++
		p.tok = tokOpen
	case c == ')':
		p.pos++
		p.tok = tokClose
	case c == '"':
		return p.quoted()
	case isPlain(c):
		for p.pos < len(p.s) && isPlain(p.s[p.pos]) {
			p.pos++
		}
		p.name = p.s[p.at:p.pos]
		switch {
		case strings.EqualFold(p.name, "AND"):
			p.tok = tokAnd
		case strings.EqualFold(p.name, "OR"):
			p.tok = tokOr
		case strings.EqualFold(p.name, "NOT"):
			p.tok = tokNot
		default:
			p.tok = tokName
		}
	default:
		p.pos++
		return p.fail(`a name, a name in quotes, NOT or "("`)
	}
	return nil
}

func (p *parser) quoted() error {
	var name []byte
	for i := p.pos + 1; i < len(p.s); i++ {
		switch c := p.s[i]; {
		case c == '"':
			if len(name) == 0 {
				p.pos = i + 1
				return p.fail("a name that is not empty")
			}
			p.pos, p.tok, p.name = i+1, tokName, string(name)
			return nil
		case c == '\\' && i+1 < len(p.s):
			i++
			name = append(name, p.s[i])
		default:
			name = append(name, c)
		}
	}
	p.pos = len(p.s)
	return p.fail("a closing quote")
}

func (p *parser) or(depth int) (Expr, error) {
	return p.chain(depth, tokOr, opOr, p.and)
}

func (p *parser) and(depth int) (Expr, error) {
	return p.chain(depth, tokAnd, opAnd, p.not)
}

func (p *parser) chain(depth int, sep token, o op, operand func(int) (Expr, error)) (Expr, error) {
	e, err := operand(depth)
	if err != nil || p.tok != sep {
		return e, err
	}
	es := []Expr{e}
	for p.tok == sep {
		if err = p.next(); err != nil {
			return Expr{}, err
		}
		if e, err = operand(depth); err != nil {
			return Expr{}, err
		}
		es = append(es, e)
	}
	return join(o, es...), nil
}

func (p *parser) not(depth int) (Expr, error) {
	if depth > maxExprDepth {
		return Expr{}, p.fail(fmt.Sprintf("no more than %d levels", maxExprDepth))
	}
	switch p.tok {
	case tokNot:
		if err := p.next(); err != nil {
			return Expr{}, err
		}
		e, err := p.not(depth + 1)
		if err != nil {
			return Expr{}, err
		}
		return Not(e), nil
	case tokOpen:
		if err := p.next(); err != nil {
			return Expr{}, err
		}
		e, err := p.or(depth + 1)
		if err != nil {
			return Expr{}, err
		}
		if p.tok != tokClose {
			return Expr{}, p.fail(`AND, OR or ")"`)
		}
		return e, p.next()
	case tokName:
		e := Name(p.name)
		return e, p.next()
	}
	return Expr{}, p.fail(`a name, NOT or "("`)
}
