package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// attempt is one probe from its start to its verdict. Whoever works on it sets step
// before each step, so that an error can say where it came up.
type attempt struct {
	ctx      context.Context
	cancel   context.CancelFunc
	deadline time.Time
	start    time.Time
	proto    string // as in errors: "smtp"
	step     string // as in errors: "greeting"
	target   netip.AddrPort
	dialer   Dialer
	first    bool // over TCP the client speaks first
	sent     bool // a packet has left this machine for certain

	// What a passing result says.
	note     string
	notAfter time.Time
	agent    *healthcheck.AgentReport
	// final makes a failure count at once.
	final bool
	// decided is when the verdict stood, before the farewell.
	decided time.Time
}

// begin starts a probe. end must be called.
func begin(ctx context.Context, proto string, d Dialer, target netip.AddrPort) *attempt {
	a := &attempt{ctx: ctx, start: time.Now(), proto: proto, step: "connect", target: target, dialer: d}
	var ok bool
	if a.deadline, ok = ctx.Deadline(); !ok {
		a.deadline = a.start.Add(DefaultTimeout)
		a.ctx, a.cancel = context.WithDeadline(ctx, a.deadline)
	}
	return a
}

func (a *attempt) end() {
	if a.cancel != nil {
		a.cancel()
	}
}

// decide notes when the verdict stood.
func (a *attempt) decide() {
	if a.decided.IsZero() {
		a.decided = time.Now()
	}
}

// result turns what a probe ended with into its result.
func (a *attempt) result(err error) healthcheck.Result {
	a.decide()
	res := healthcheck.Passed(a.note)
	if err != nil {
		res = a.failure(err)
		res.Note = a.note
	}
	res.Latency = a.decided.Sub(a.start)
	res.NotAfter = a.notAfter
	res.Agent = a.agent
	return res
}

func (a *attempt) failure(err error) healthcheck.Result {
	op := a.proto + ": " + a.step
	if errors.Is(a.ctx.Err(), context.Canceled) {
		return healthcheck.Undecided(op, a.target, context.Canceled)
	}
	if isLocal(a.ctx, a.dialer, a.target, a.sent, err) {
		return healthcheck.Undecided(op, a.target, cause(err))
	}
	cut, ok := errors.AsType[*cutError](err)
	switch {
	case ok:
		cut.seen = strings.Clone(cut.seen[:min(len(cut.seen), enough+1)]) // as much as Error looks at
	case isTimeout(err) || isEOF(err):
		err = &cutError{err: err}
	default:
		err = cause(err)
	}
	res := healthcheck.Failure(op, a.target, err)
	res.Final = a.final
	return res
}

// invalid is the result of a prober whose fields are at fault.
func invalid(proto string, target netip.AddrPort, err error) healthcheck.Result {
	return healthcheck.Undecided(proto+": configuration", target, err)
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// cutError says that a reply ended too early, and what had arrived.
type cutError struct {
	seen string
	err  error
}

func (e *cutError) Error() string {
	what := "connection closed"
	switch {
	case isTimeout(e.err):
		what = "timed out"
	case isEOF(e.err):
	default:
		what = cause(e.err).Error()
	}
	if e.seen == "" {
		return what + " without an answer"
	}
	return fmt.Sprintf("%s after %q", what, shorten(e.seen))
}

// Unwrap returns one error for all that mean the same.
func (e *cutError) Unwrap() error {
	switch {
	case isTimeout(e.err):
		return os.ErrDeadlineExceeded
	case isEOF(e.err):
		return io.ErrUnexpectedEOF
	}
	return e.err
}

// enough is how much of a reply an error quotes.
const enough = 100

// shorten cuts a quotation for an error.
func shorten(s string) string {
	if len(s) > enough {
		return s[:enough] + "…"
	}
	return s
}
