package l7

import (
	"bytes"
	"slices"
)

// truth is the answer of a method: what is not known yet may become known with more
// bytes, and then does not change any more.
type truth uint8

const (
	no truth = iota
	yes
	unknown
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

func and(a, b truth) truth {
	if a == no || b == no {
		return no
	}
	return max(a, b) // unknown if either is
}

// or is for the two parts of a request.
func or(a, b truth) truth {
	if a == yes || b == yes {
		return yes
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

	path     []byte // normalised
	pathDone bool
	scratch  []byte
	line     int // lines seen at the last early evaluation, plus one
}

// reset makes ready for the next request of the connection.
func (c *classifier) reset() {
	c.parser.reset()
	*c = classifier{
		policy: c.policy, in: c.in, parser: c.parser,
		decoded: c.decoded[:0], path: c.path[:0], scratch: c.scratch,
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
	if c.err != nil {
		return Decision{Verdict: Refused, Err: c.err}
	}
	if !c.parser.done && !final && (!p.cfg.Early || c.line == c.parser.line+1) {
		return Decision{}
	}
	c.line = c.parser.line + 1
	d := c.rows(b, final)
	if c.err != nil {
		return Decision{Verdict: Refused, Err: c.err}
	}
	return d
}

// rows tries the rows in order.
func (c *classifier) rows(b []byte, final bool) Decision {
	p := c.policy
	for i := range p.rows {
		r := &p.rows[i]
		holds := c.holds(&r.first, b, final)
		if holds != no { // a body that does not matter must not be read
			holds = and(holds, c.holds(&r.second, b, final))
		}
		switch holds {
		case yes:
			return Decision{Verdict: Decided, Action: r.action, Rule: &p.rules[i]}
		case unknown:
			if final {
				return Decision{Verdict: BudgetUsedUp, Action: p.cfg.Default}
			}
			return Decision{}
		}
	}
	return Decision{Verdict: NoMatch, Action: p.cfg.Default}
}

// holds evaluates one method.
func (c *classifier) holds(m *method, b []byte, final bool) truth {
	switch m.kind {
	case Always:
		return yes
	case ServerName:
		return truthOf(c.in.ServerName != "" && m.glob.match(bytes.TrimSuffix([]byte(c.in.ServerName), []byte("."))))
	case ALPN:
		return truthOf(slices.Contains(c.in.ALPN, m.text))
	}
	h := &c.parser
	if c.in.TLS {
		return no
	}
	if h.line == 0 {
		return unknown
	}
	switch m.kind {
	case PathPrefix:
		return truthOf(bytes.HasPrefix(c.pathOf(b), []byte(m.text)))
	case PathExact:
		return truthOf(string(c.pathOf(b)) == m.text)
	case PathSuffix:
		return truthOf(bytes.HasSuffix(c.pathOf(b), []byte(m.text)))
	case Host:
		return c.ifHost(func() bool { return m.glob.match(hostName(h.host.of(b))) })
	case URL:
		return c.ifHost(func() bool { return m.glob.match(hostName(h.host.of(b))) && m.path.match(c.target(b)) })
	case Header:
		return c.ifField(m, b, func(v []byte) bool { return m.glob.match(v) })
	case Cookie:
		return c.ifField(m, b, func(v []byte) bool { return hasCookie(v, m) })
	}
	var found truth
	if m.in != InBody {
		found = c.inHead(m, b)
	}
	if m.in != InHead && found != yes {
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
func (c *classifier) ifHost(f func() bool) truth {
	if !c.parser.done && c.parser.hosts == 0 && !c.parser.authority {
		return unknown
	}
	return truthOf(f())
}

// ifField evaluates f for the values of a field until it holds.
func (c *classifier) ifField(m *method, b []byte, f func(value []byte) bool) truth {
	name := m.key
	if m.kind == Cookie {
		name = "cookie"
	}
	for _, fl := range c.parser.fields {
		if equalFold(fl.name.of(b), name) && f(fl.value.of(b)) {
			return yes
		}
	}
	if c.parser.done {
		return no
	}
	return unknown
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
func (c *classifier) inHead(m *method, b []byte) truth {
	h := &c.parser
	switch {
	case h.done:
		return m.search(b[h.start:h.pos])
	case m.kind == Text && m.search(b[h.start:h.pos]) == yes:
		return yes
	}
	return unknown
}

// inBody searches the body when there is all of it, or as far as the budget goes.
func (c *classifier) inBody(m *method, b []byte, final bool) truth {
	h := &c.parser
	if !h.done {
		return unknown
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
	case final && m.search(body) == yes:
		return yes
	}
	return unknown
}

func (m *method) search(b []byte) truth {
	if m.kind == Regexp {
		return truthOf(m.re.Match(b))
	}
	return truthOf(bytes.Contains(b, []byte(m.text)))
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
