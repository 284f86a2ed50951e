package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/lbprim/lbprim/healthcheck"
)

// Script sends and expects, step by step. The zero Script connects only. It is a plain
// value, safe for concurrent use.
//
// The verdict does not depend on the pieces in which a reply arrives. A literal matches
// as soon as it has arrived. A regular expression is tried each time a line is
// complete, against all that has arrived since the last step, and once more when the
// server closes.
type Script struct {
	Dialer Dialer // nil: the system's choices
	Steps  []Step // in order
}

// Step is one step of a [Script]: it sends, or expects, or sends and then expects. It is
// a plain value.
type Step struct {
	Name string // as in errors; default "step 3"
	Send []byte // sent, unless empty
	// Expect and Match, of which at most one is set, are what the reply must have.
	Expect []byte
	Match  *regexp.Regexp
	// Line limits the expectation to the next line, without its end.
	Line bool
	// Not turns the expectation round: the reply, up to the end of the connection
	// or of the line, must not have it.
	Not bool
}

// maxScriptLines bounds how often a regular expression is tried in one step.
const maxScriptLines = 256

func (s Step) expects() bool { return len(s.Expect) > 0 || s.Match != nil }

func (s Step) found(b []byte) bool {
	if s.Match != nil {
		return s.Match.Match(b)
	}
	return bytes.Contains(b, s.Expect)
}

func (s Step) want() string {
	not := ""
	if s.Not {
		not = "not "
	}
	if s.Match != nil {
		return not + "a match of /" + s.Match.String() + "/"
	}
	return fmt.Sprintf("%s%q", not, shorten(string(s.Expect)))
}

// Validate reports all faults of p.
func (p Script) Validate() error {
	var errs []error
	for i, s := range p.Steps {
		switch {
		case len(s.Expect) > 0 && s.Match != nil:
			errs = append(errs, fmt.Errorf("probe: Script.Steps[%d]: got Expect and Match, want one of them", i))
		case !s.expects() && (s.Not || s.Line):
			errs = append(errs, fmt.Errorf("probe: Script.Steps[%d]: got Not or Line alone, want Expect or Match with it", i))
		case !s.expects() && len(s.Send) == 0:
			errs = append(errs, fmt.Errorf("probe: Script.Steps[%d]: got nothing, want Send, Expect or Match", i))
		}
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p Script) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("script", target, err)
	}
	over := overTCP
	if len(p.Steps) > 0 && len(p.Steps[0].Send) > 0 {
		over = askOverTCP
	}
	return over(ctx, "script", p.Dialer, target, maxReply, func(s *stream) error {
		for i, step := range p.Steps {
			s.step = step.Name
			if s.step == "" {
				s.step = fmt.Sprintf("step %d", i+1)
			}
			if len(step.Send) > 0 {
				if err := s.send(step.Send); err != nil {
					return err
				}
			}
			if !step.expects() {
				continue
			}
			if err := step.expect(s.reader); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s Step) expect(r *reader) error {
	if s.Line {
		line, err := r.readLine()
		if err == nil && s.found(line) == s.Not {
			err = healthcheck.Mismatch(line, s.want())
		}
		return err
	}
	var got []byte
	lines := 0
	for {
		c, err := r.readByte()
		if err != nil {
			return s.ended(got, err)
		}
		got = append(got, c)
		if c == '\n' {
			if lines++; lines > maxScriptLines && s.Match != nil {
				return fmt.Errorf("%w: more than %d lines without %s", errTooLong, maxScriptLines, s.want())
			}
		}
		if s.arrived(got, c) {
			if s.Not {
				return healthcheck.Mismatch(got, s.want())
			}
			return nil
		}
	}
}

// arrived reports whether what is expected has arrived with c, the last byte of got.
func (s Step) arrived(got []byte, c byte) bool {
	if s.Match != nil {
		return c == '\n' && s.Match.Match(got)
	}
	return bytes.HasSuffix(got, s.Expect)
}

// ended decides when no more comes.
func (s Step) ended(got []byte, err error) error {
	cut, ok := errors.AsType[*cutError](err)
	if !ok { // the bound
		return err
	}
	if !isEOF(cut.err) {
		return &cutError{seen: string(got), err: cut.err}
	}
	if s.found(got) == s.Not {
		if len(got) == 0 {
			return &cutError{err: cut.err}
		}
		return healthcheck.Mismatch(got, s.want())
	}
	return nil
}
