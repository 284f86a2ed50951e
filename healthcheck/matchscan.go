package healthcheck

import "fmt"

// Hit is where a rule of a [MatchList] hit. The zero Hit is none.
type Hit struct {
	OK    bool // whether a rule hit
	Rule  int  // index
	Start int  // of the hit in the reply
	End   int  // after the hit
}

// Scan looks through one reply that comes in pieces. How it is cut makes no
// difference. A Scan is not safe for concurrent use. Make one with
// [MatchList.Scan].
type Scan struct {
	l    *MatchList
	n    int // bytes seen
	node int32
	best Hit
	// begun is, for each compound rule, where its Text began, plus 1.
	begun []int32
	// prefix is the part of the reply that a MatchStart rule may still need.
	prefix []byte
	cut    bool // the reply is longer than MaxReply
}

// Scan returns a Scan at the start of a reply.
func (l *MatchList) Scan() *Scan {
	return &Scan{l: l, begun: make([]int32, len(l.rules))}
}

// Match decides about a whole reply.
func (l *MatchList) Match(reply []byte) (Verdict, Hit) {
	s := l.Scan()
	_, _ = s.Write(reply)
	return s.Finish()
}

// Write takes the next piece of the reply. It never fails; what comes after
// [MaxReply] bytes is not looked at.
func (s *Scan) Write(p []byte) (int, error) {
	all := len(p)
	if room := MaxReply - s.n; len(p) > room {
		p, s.cut = p[:room], true
	}
	if s.l.starts && len(s.prefix) < maxMatchText {
		s.prefix = append(s.prefix, p[:min(len(p), maxMatchText-len(s.prefix))]...)
	}
	l, at := s.l, s.node
	for _, c := range p {
		s.n++
		if at = l.step(at, c); at == 0 {
			continue
		}
		o := at
		if l.nodes[o].out < 0 {
			o = l.nodes[o].link
		}
		for ; o >= 0; o = l.nodes[o].link {
			for i := l.nodes[o].out; i >= 0; i = l.outs[i].next {
				s.found(&l.outs[i], int(l.nodes[o].depth))
			}
		}
	}
	s.node = at
	return all, nil
}

// found takes a text of n bytes that ends here.
func (s *Scan) found(o *acOut, n int) {
	switch o.role {
	case roleSimple:
		s.offer(o.rule, s.n-n, s.n)
	case roleBegin:
		if s.begun[o.rule] == 0 {
			s.begun[o.rule] = int32(s.n-n) + 1
		}
	case roleEnd:
		if b := int(s.begun[o.rule]) - 1; b >= 0 && s.n-n >= b+len(s.l.rules[o.rule].Text) {
			s.offer(o.rule, b, s.n)
			// Later ends mean nothing, and the rule waits no more.
			s.begun[o.rule] = -1
		}
	}
}

// offer takes a hit, and keeps it if it decides over the best so far.
func (s *Scan) offer(rule int32, start, end int) {
	h := Hit{true, int(rule), start, end}
	b, rules := s.best, s.l.rules
	if b.OK {
		switch {
		case h.Start != b.Start:
			if h.Start > b.Start {
				return
			}
		case h.End != b.End:
			if h.End < b.End {
				return
			}
		case rules[h.Rule].Verdict == rules[b.Rule].Verdict:
			if h.Rule > b.Rule {
				return
			}
		case rules[b.Rule].Verdict == Fail:
			return
		}
	}
	s.best = h
}

// Decided reports whether the rest of the reply can change nothing any more, so
// that it need not be read.
func (s *Scan) Decided() bool {
	if s.n >= MaxReply {
		// One more byte would only show that this is not the end.
		return s.cut || !s.tailHere()
	}
	if len(s.l.rules) == 0 {
		return true
	}
	best := s.best
	for i, r := range s.l.rules {
		switch r.Kind {
		case MatchStart:
			// It hits at 0, which is no later than any hit so far.
			switch st := s.start(r.Text); {
			case st == prefixOpen:
				return false
			case st == prefixHit && (!best.OK || best.Start > 0 || best.End < len(r.Text)):
				best = Hit{true, i, 0, len(r.Text)}
			}
		case MatchCompound:
			if b := int(s.begun[i]) - 1; b >= 0 && (!best.OK || b <= best.Start) {
				return false
			}
		}
	}
	if !best.OK {
		return false
	}
	// A text that is partly here could still hit no later than best. The longest
	// that can be continued, or could be the end of the reply, starts earliest.
	for at := s.node; at != 0; at = s.l.nodes[at].fail {
		n := &s.l.nodes[at]
		if s.n-int(n.depth) > best.Start {
			break
		}
		if len(n.edges) > 0 {
			return false
		}
		for i := n.out; i >= 0; i = s.l.outs[i].next {
			if s.l.outs[i].role == roleTail {
				return false
			}
		}
	}
	return true
}

// tailHere reports whether a MatchEnd rule hits if the reply ends here.
func (s *Scan) tailHere() bool {
	for at := s.node; at >= 0; at = s.l.nodes[at].link {
		for i := s.l.nodes[at].out; i >= 0; i = s.l.outs[i].next {
			if s.l.outs[i].role == roleTail {
				return true
			}
		}
	}
	return false
}

type prefixState uint8

const (
	prefixMiss prefixState = iota
	prefixOpen             // so far, so good
	prefixHit
)

func (s *Scan) start(text string) prefixState {
	n := min(len(text), len(s.prefix))
	switch {
	case string(s.prefix[:n]) != text[:n]:
		return prefixMiss
	case n < len(text):
		return prefixOpen
	}
	return prefixHit
}

// Finish says that the reply is over, and returns the verdict and the hit it
// comes from. Nothing may be written afterwards.
func (s *Scan) Finish() (Verdict, Hit) {
	for i, r := range s.l.rules {
		if r.Kind == MatchStart && s.start(r.Text) == prefixHit {
			s.offer(int32(i), 0, len(r.Text))
		}
	}
	for at := s.node; at >= 0 && !s.cut; at = s.l.nodes[at].link {
		for i := s.l.nodes[at].out; i >= 0; i = s.l.outs[i].next {
			if s.l.outs[i].role == roleTail {
				s.offer(s.l.outs[i].rule, s.n-int(s.l.nodes[at].depth), s.n)
			}
		}
	}
	if !s.best.OK {
		return s.l.fallback, Hit{}
	}
	return s.l.rules[s.best.Rule].Verdict, s.best
}

// Describe says, for the note or the error of a result, what decided.
func (l *MatchList) Describe(h Hit) string {
	if !h.OK {
		return "no rule matched, default " + l.fallback.String()
	}
	r := l.rules[h.Rule]
	what := fmt.Sprintf("%q", clip(r.Text))
	if r.Kind == MatchCompound {
		what += fmt.Sprintf("…%q", clip(r.End))
	}
	return fmt.Sprintf("rule %d (%v %s) matched at byte %d: %v", h.Rule, r.Kind, what, h.Start, r.Verdict)
}
