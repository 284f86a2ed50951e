package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// ErrMismatch is wrapped by every error that says the target answered, but not as
// expected.
var ErrMismatch = errors.New("healthcheck: unexpected answer")

// ErrLocal is wrapped by every error whose cause is this machine and not the
// target: no route, no permission, no descriptors. Such a result is
// [Inconclusive].
var ErrLocal = errors.New("local")

// A Prober probes a target once.
//
// Probe returns soon after ctx is done, whatever the target does, and the
// deadline of ctx covers the whole probe. It is safe for concurrent use, keeps
// nothing open and starts nothing that outlives the call.
type Prober interface {
	Probe(ctx context.Context, target netip.AddrPort) Result
}

// ProberFunc lets an ordinary function serve as a [Prober].
type ProberFunc func(ctx context.Context, target netip.AddrPort) Result

// Probe calls f.
func (f ProberFunc) Probe(ctx context.Context, target netip.AddrPort) Result {
	return f(ctx, target)
}

// Result is what one probe found out. The zero Result is [Inconclusive] without
// a cause. It is a plain value and may be copied; nobody changes what Err and
// Agent point to.
type Result struct {
	Verdict Verdict // Pass, Fail or Inconclusive
	// Final makes a [Fail] count at once, without the repetitions that
	// [Check.Fall] asks for. It means nothing with other verdicts.
	Final bool
	// Note says, in a few words, what a reader would want to know of a result
	// that is no error: "connect() instead of raw socket", "certificate expires
	// in 3 days", "reject counts as alive".
	Note string
	// Err is why the verdict is Fail or Inconclusive; nil otherwise. It usually
	// is a *[ProbeError].
	Err error
	// Latency is how long the target took. Zero: the [Monitor] fills in how long
	// Probe took.
	Latency time.Duration
	// NotAfter is when the certificate the target showed expires; zero if it
	// showed none.
	NotAfter time.Time
	// Agent is what an agent on the target said; nil for other probes.
	Agent *AgentReport
}

// Passed is the result of a probe that was answered as it should be.
func Passed(note string) Result { return Result{Verdict: Pass, Note: note} }

// Assumed is the result of a probe to which silence counts as life.
func Assumed(note string) Result { return Result{Verdict: AssumedAlive, Note: note} }

// Failure is the result of a probe of target that failed at step op because of
// err.
func Failure(op string, target netip.AddrPort, err error) Result {
	return Result{Verdict: Fail, Err: &ProbeError{Op: op, Target: target, Err: err}}
}

// Undecided is the result of a probe that could not be made for a reason on this
// machine, err. The error of the result wraps both [ErrLocal] and err, and reads
// "local: …".
func Undecided(op string, target netip.AddrPort, err error) Result {
	return Result{Err: &ProbeError{Op: op, Target: target, Err: fmt.Errorf("%w: %w", ErrLocal, err)}}
}

// FailWith is the prober for a check that cannot be made, as that of an element
// that asks for Layer 7 and names no protocol ([ErrNoMethod]): it fails with err,
// at once.
func FailWith(err error) Prober {
	return ProberFunc(func(_ context.Context, target netip.AddrPort) Result {
		r := Failure("configuration", target, err)
		r.Final = true
		return r
	})
}

// ProbeError says at which step a probe failed, and what was seen there.
type ProbeError struct {
	// Op is the protocol and the step, as in "smtp: greeting".
	Op     string
	Target netip.AddrPort
	Err    error
}

// Error is, for example, `smtp: greeting: got "554 no service", want 220`. It
// does not repeat the target, which whoever prints it knows.
func (e *ProbeError) Error() string {
	if e.Err == nil {
		return e.Op + ": failed"
	}
	if e.Op == "" {
		return e.Err.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

// Unwrap returns e.Err.
func (e *ProbeError) Unwrap() error { return e.Err }

// MismatchError says what a target answered and what would have been right. It
// wraps [ErrMismatch].
type MismatchError struct {
	Got  string // the relevant part of the answer, raw; of a long one the beginning
	Want string // in words
}

// maxShown is how much of an answer an error quotes, and maxKept how much it keeps: a status and
// its error live as long as the target fails.
const (
	maxShown = 100
	maxKept  = 1 << 10
)

// Error quotes the beginning of what was got.
func (e *MismatchError) Error() string {
	got, more := e.Got, ""
	if len(got) > maxShown {
		got, more = got[:maxShown], "…"
	}
	return fmt.Sprintf("got %q%s, want %s", got, more, e.Want)
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// Mismatch returns a *[MismatchError] that keeps at most the first 1,024 bytes of got.
func Mismatch[B ~string | ~[]byte](got B, want string) error {
	return &MismatchError{Got: string([]byte(got[:min(len(got), maxKept)])), Want: want}
}
