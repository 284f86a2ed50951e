package l7

// Stream follows the requests of one connection through the client's bytes. Make one with
// [Policy.NewStream]; it must not be copied and belongs to one goroutine at a time.
type Stream struct {
	c     classifier
	state streamState
	held  Decision // until the head was judged
	left  int64    // of a body with a length
	chunk chunker
	err   error
}

type streamState uint8

const (
	inHead    streamState = iota // of a request that is not decided
	decided                      // before the end of the head
	inBody                       // with a length
	inChunks                     // chunked
	asked                        // for another protocol: opaque, unless the server declines
	opaque                       // all bytes belong to the last decision
	isRefused                    // nothing may be forwarded any more
)

// Step is what a Stream says about the next bytes.
type Step struct {
	// Decision is about a request that begins; its Verdict is NeedMore in every step
	// that decides nothing.
	Decision Decision
	// N is how many bytes to take from the front: they belong to the request decided last,
	// in this step or an earlier one.
	N int
	// Begin says that the N bytes begin with the head of a request, and End that a
	// request ends with them.
	Begin, End bool
	// Opaque says that all bytes that follow belong to the request decided last: the
	// connection is no longer followed. It is so in the mode First, if no rule looks at
	// HTTP, and after a request that ends the connection or asks for another protocol.
	Opaque bool
	// Upgrade says that it is so because the request that ends asks for another protocol or
	// a tunnel. The server may decline, so the bytes that follow must be held back until it has
	// answered: see [Stream.Declined].
	Upgrade bool
}

// NewStream returns a Stream for a new connection.
func (p *Policy) NewStream(in Input) *Stream {
	return &Stream{c: classifier{policy: p, in: in}}
}

// Next looks at b, which holds the client's bytes from the first that was not taken yet.
// The caller acts on the step, takes step.N bytes from the front, and calls again until a
// step decides nothing and takes nothing; then it waits for more bytes. What it keeps in
// between is at most the budget, a chunk's size line or trailers, or, where further requests
// are to be classified, a head up to [MaxBudget], however small the budget is: if
// a long head ended the classification, a client could have any request pass behind one.
// Longer heads are refused.
//
//	for {
//		step := s.Next(buf)
//		if step.Decision.Verdict != NeedMore { … choose a server, or answer, or close … }
//		… forward buf[:step.N] …
//		buf = buf[step.N:]
//		if step.Upgrade { … call no more until the server has answered; see Declined … }
//		if step.N == 0 && step.Decision.Verdict == NeedMore { break }
//	}
func (s *Stream) Next(b []byte) Step {
	switch s.state {
	case inHead:
		return s.classify(b)
	case decided:
		st := s.rest(b)
		if st.N > 0 {
			st.Decision, s.held = s.held, Decision{}
		}
		return st
	case inBody:
		n := int(min(int64(len(b)), s.left))
		s.left -= int64(n)
		st := Step{N: n}
		if s.left == 0 {
			s.end(&st)
		}
		return st
	case inChunks:
		return s.chunks(b)
	case asked:
		if len(b) > 0 {
			s.state = opaque
		}
		return Step{N: len(b), Opaque: true}
	case opaque:
		return Step{N: len(b), Opaque: true}
	}
	return s.refuse(s.err)
}

// Declined says that the server did not agree to the other protocol or tunnel that the last
// request asked for: its status was not 101, or not 2xx for CONNECT. HTTP then goes on, and the
// stream follows it again. It reports whether that was the state of the stream.
//
// What follows a step with Upgrade must be held back, and Next not be called with it, until the
// server has answered: once any of it was taken, it is too late. Else a client could ask for a
// protocol that no server speaks, and have whatever request it sends next pass unseen. In the
// mode [First], which looks at no further request anyway, no step has Upgrade.
func (s *Stream) Declined() bool {
	if s.state != asked {
		return false
	}
	s.state = inHead
	s.c.reset()
	return true
}

// Skip takes up to most bytes of a body whose length is known, for who lets them pass without showing them. It returns how many bytes
// these are, and whether the request ends with them, as Next would say in its Step; 0 if what comes next must be shown.
func (s *Stream) Skip(most int64) (n int64, end Step) {
	if s.state != inBody {
		return 0, Step{}
	}
	n = min(most, s.left)
	if s.left -= n; s.left == 0 {
		s.end(&end)
	}
	return n, end
}

func (s *Stream) refuse(err error) Step {
	s.state, s.err = isRefused, err
	return Step{Decision: Decision{Verdict: Refused, Err: err}}
}

// classify handles the head of a request that is not decided.
func (s *Stream) classify(b []byte) Step {
	d := s.c.classify(b)
	switch d.Verdict {
	case NeedMore:
		return Step{}
	case Refused:
		return s.refuse(d.Err)
	}
	st := Step{Decision: d}
	if s.c.in.TLS || !s.c.policy.http {
		s.state = opaque // every request would be decided alike
		st.N, st.Begin, st.Opaque = len(b), true, true
		return st
	}
	s.state = decided
	if rest := s.rest(b); rest.Decision.Verdict == Refused {
		return rest
	} else if rest.N > 0 {
		rest.Decision = d
		return rest
	}
	if !s.c.policy.cfg.Early {
		s.held = d // or else the answer would depend on how the bytes were cut
		return Step{}
	}
	return st
}

// rest waits for the end of a head that is decided and lets it pass as a whole. In the mode
// First it waits no longer than the budget.
func (s *Stream) rest(b []byte) Step {
	p := &s.c.parser
	first := s.c.policy.cfg.Mode == First
	limit := MaxBudget
	if first {
		limit = s.c.policy.Config().Budget
	}
	if !p.done {
		if err := p.feed(b[:min(len(b), limit)]); err != nil {
			return s.refuse(err)
		}
	}
	st := Step{N: p.pos, Begin: true}
	switch {
	case !p.done && len(b) < limit:
		return Step{}
	case !p.done && !first:
		return s.refuse(errLongHead)
	case first:
		s.state = opaque
		return Step{N: len(b), Begin: true, Opaque: true}
	case p.chunked:
		s.state, s.chunk = inChunks, chunker{}
	case p.length > 0:
		s.state, s.left = inBody, p.length
	default:
		s.end(&st)
	}
	return st
}

func (s *Stream) chunks(b []byte) Step {
	var st Step
	for s.chunk.state != chunkDone {
		n, _, err := s.chunk.step(b[st.N:])
		if err != nil {
			if st.N > 0 { // what came before it is sound
				s.state, s.err = isRefused, err
				return st
			}
			return s.refuse(err)
		}
		if n == 0 {
			return st
		}
		st.N += n
	}
	s.end(&st)
	return st
}

// end closes a request.
func (s *Stream) end(st *Step) {
	st.End = true
	p := &s.c.parser
	switch {
	case p.close:
		s.state, st.Opaque = opaque, true
		return
	case p.upgrade:
		s.state, st.Opaque, st.Upgrade = asked, true, true
		return
	}
	s.state = inHead
	s.c.reset()
}
