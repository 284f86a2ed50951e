package l7

import (
	"bytes"
	"slices"
)

func findingOf(b bool) Finding {
	if b {
		return Holds
	}
	return Fails
}

func and(a, b Finding) Finding {
	if a == Fails || b == Fails {
		return Fails
	}
	return max(a, b) // Undecided if either is
}

// or is for the two parts of a request.
func or(a, b Finding) Finding {
	if a == Holds || b == Holds {
		return Holds
	}
	return max(a, b)
}

// classifier goes on with one request as bytes arrive.
type classifier struct {
	policy *Policy
	in     Input
	parser parser
	err    error

	chunks   chunker
	chunkPos int
	decoded  []byte // chunked body so far
	bodyDone bool
	waiting  bool // for the body: the head alone did not decide

	path     []byte // normalised
	pathDone bool
	scratch  []byte
	line     int // lines seen at the last early evaluation, plus one

	visit func(row int, first, second Finding) // nil but for Explain
}

// reset makes ready for the next request of the connection.
func (c *classifier) reset() {
	c.parser.reset()
	*c = classifier{
		policy: c.policy, in: c.in, parser: c.parser,
		decoded: c.decoded[:0], path: c.path[:0], scratch: c.scratch, visit: c.visit,
	}
}

func (c *classifier) classify(b []byte) Decision {
	p := c.policy
	budget := p.cfg.Budget
	if budget == 0 {
		budget = DefaultBudget // the zero Policy
	}
	final := len(b) >= budget
	b = b[:min(len(b), budget)]
	if c.in.TLS || !p.http {
		return c.rows(b, true)
	}
	if c.err == nil {
		c.err = c.parser.feed(b)
	}
	if c.err == nil && c.waiting {
		c.err = c.readBody(b)
	}
	if c.err != nil {
		return Decision{Verdict: Refused, Err: c.err}
	}
	if c.waiting && !c.bodyDone && !final {
		return Decision{} // trying all rows again for every byte would be slow
	}
	if !c.parser.done && !final && (!p.cfg.Early || c.line == c.parser.line+1) {
		return Decision{}
	}
	c.line = c.parser.line + 1
	d := c.rows(b, final)
	if c.err != nil {
		return Decision{Verdict: Refused, Err: c.err}
	}
	c.waiting = d.Verdict == NeedMore && c.parser.done
	return d
}

// rows tries the rows in order.
func (c *classifier) rows(b []byte, final bool) Decision {
	p := c.policy
	for i := range p.rows {
		r := &p.rows[i]
		first, second := c.both(r, b, final)
		if c.visit != nil {
			c.visit(i, first, second)
		}
		switch and(first, second) {
		case Holds:
			return Decision{Verdict: Decided, Action: r.action, Rule: &p.rules[i]}
		case Undecided:
			if final {
				return Decision{Verdict: BudgetUsedUp, Action: p.cfg.Default}
			}
			return Decision{}
		}
	}
	return Decision{Verdict: NoMatch, Action: p.cfg.Default}
}

// both evaluates the methods of a row, the second only if the first does not settle it. One
// that looks in the body comes last: a body that does not matter must not be read,
// since whether it has arrived, and is sound, depends on how the bytes were cut.
func (c *classifier) both(r *row, b []byte, final bool) (first, second Finding) {
	if r.first.in != InHead && r.second.in == InHead {
		if second = c.holds(&r.second, b, final); second != Fails {
			first = c.holds(&r.first, b, final)
		}
		return first, second
	}
	if first = c.holds(&r.first, b, final); first != Fails {
		second = c.holds(&r.second, b, final)
	}
	return first, second
}

// holds evaluates one method.
func (c *classifier) holds(m *method, b []byte, final bool) Finding {
	switch m.kind {
	case Always:
		return Holds
	case ServerName:
		return findingOf(c.in.ServerName != "" && m.glob.match(bytes.TrimSuffix([]byte(c.in.ServerName), []byte("."))))
	case ALPN:
		return findingOf(slices.Contains(c.in.ALPN, m.text))
	}
	h := &c.parser
	if c.in.TLS {
		return Fails
	}
	if h.line == 0 {
		return Undecided
	}
	switch m.kind {
	case PathPrefix:
		return findingOf(bytes.HasPrefix(c.pathOf(b), []byte(m.text)))
	case PathExact:
		return findingOf(string(c.pathOf(b)) == m.text)
	case PathSuffix:
		return findingOf(bytes.HasSuffix(c.pathOf(b), []byte(m.text)))
	case Host:
		return c.ifHost(func() bool { return m.glob.match(hostName(h.host.of(b))) })
	case URL:
		return c.ifHost(func() bool { return m.glob.match(hostName(h.host.of(b))) && m.path.match(c.target(b)) })
	case Header:
		return c.ifField(m, b, func(v []byte) bool { return m.glob.match(v) })
	case Cookie:
		return c.ifField(m, b, func(v []byte) bool { return hasCookie(v, m) })
	}
	var found Finding
	if m.in != InBody {
		found = c.inHead(m, b)
	}
	if m.in != InHead && found != Holds {
		found = or(found, c.inBody(m, b, final))
	}
	return found
}

// pathOf returns the path as rules see it.
func (c *classifier) pathOf(b []byte) []byte {
	path := c.parser.path.of(b)
	if len(path) == 0 && c.parser.authority && string(c.parser.method.of(b)) != "CONNECT" {
		path = []byte("/") // RFC 9110 section 4.2.3
	}
	if !c.policy.cfg.Normalize {
		return path
	}
	if !c.pathDone {
		c.path, c.pathDone = appendNormalized(c.path[:0], path), true
	}
	return c.path
}

// target returns path and query.
func (c *classifier) target(b []byte) []byte {
	c.scratch = append(c.scratch[:0], c.pathOf(b)...)
	if q := c.parser.query; q.from > c.parser.path.to {
		c.scratch = append(append(c.scratch, '?'), q.of(b)...)
	}
	return c.scratch
}

// ifHost evaluates f once the host is known. A second Host field would not change it, but
// have the request refused.
func (c *classifier) ifHost(f func() bool) Finding {
	if !c.parser.done && c.parser.hosts == 0 && !c.parser.authority {
		return Undecided
	}
	return findingOf(f())
}

// ifField evaluates f for the values of a field until it holds.
func (c *classifier) ifField(m *method, b []byte, f func(value []byte) bool) Finding {
	name := m.key
	if m.kind == Cookie {
		name = "cookie"
	}
	for _, fl := range c.parser.fields {
		if equalFold(fl.name.of(b), name) && f(fl.value.of(b)) {
			return Holds
		}
	}
	if c.parser.done {
		return Fails
	}
	return Undecided
}

// hasCookie looks for name=value in a Cookie field, RFC 6265 section 4.2.1.
func hasCookie(field []byte, m *method) bool {
	for pair := range bytes.SplitSeq(field, []byte(";")) {
		name, value, ok := bytes.Cut(bytes.Trim(pair, " \t"), []byte("="))
		if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if ok && string(name) == m.key && m.glob.match(value) {
			return true
		}
	}
	return false
}

// inHead searches the head's whole lines. What is found by an expression in part of a head may
// not be found in all of it, so expressions wait for the end.
func (c *classifier) inHead(m *method, b []byte) Finding {
	h := &c.parser
	switch {
	case h.done:
		return m.search(b[h.start:h.pos])
	case m.kind == Text && m.search(b[h.start:h.pos]) == Holds:
		return Holds
	}
	return Undecided
}

// inBody searches the body when there is all of it, or as far as the budget goes.
func (c *classifier) inBody(m *method, b []byte, final bool) Finding {
	h := &c.parser
	if !h.done {
		return Undecided
	}
	if !c.bodyDone && c.err == nil {
		c.err = c.readBody(b)
	}
	body := c.decoded
	if !h.chunked {
		body = b[h.pos:]
		if int64(len(body)) > h.length {
			body = body[:h.length]
		}
	}
	switch {
	case c.bodyDone:
		return m.search(body)
	case final && m.search(body) == Holds:
		return Holds
	}
	return Undecided
}

func (m *method) search(b []byte) Finding {
	if m.kind == Regexp {
		return findingOf(m.re.Match(b))
	}
	return findingOf(bytes.Contains(b, []byte(m.text)))
}

// readBody takes in what there is of the body.
func (c *classifier) readBody(b []byte) error {
	h := &c.parser
	if !h.chunked {
		c.bodyDone = int64(len(b)-h.pos) >= h.length
		return nil
	}
	c.chunkPos = max(c.chunkPos, h.pos)
	for {
		n, data, err := c.chunks.step(b[c.chunkPos:])
		if err != nil {
			return err
		}
		if data {
			c.decoded = append(c.decoded, b[c.chunkPos:c.chunkPos+n]...)
		}
		c.chunkPos += n
		if c.chunks.state == chunkDone {
			c.bodyDone = true
			return nil
		}
		if n == 0 {
			return nil
		}
	}
}
