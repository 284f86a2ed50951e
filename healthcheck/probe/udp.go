package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// UDP sends datagrams of meaningless data. An ICMP error is a failure, an answer is a
// pass, and silence is [healthcheck.AssumedAlive]: such a check is honest but blind,
// as rate-limited ICMP makes a dead port look alive. With Expect silence is a failure.
// The zero UDP works. It is a plain value, safe for concurrent use.
type UDP struct {
	Dialer Dialer // nil: the system's choices
	// Payload is what is sent; default 16 zero bytes.
	Payload []byte
	// Expect, if not empty, must be contained in an answer; other answers are
	// passed over. The first ICMP error is a failure, as without.
	Expect []byte
	// Wait is how long silence lasts that counts as life, after each datagram;
	// default 1 s. It is cut to fit the probe's deadline. With Expect the whole
	// deadline is waited for.
	Wait time.Duration
	// Datagrams is how many are sent: the answer to the first may be an ICMP error
	// that a firewall or a rate limit swallows. Default 2.
	Datagrams int
}

// Validate reports all faults of p.
func (p UDP) Validate() error {
	var errs []error
	if p.Wait < 0 {
		errs = append(errs, fmt.Errorf("probe: UDP.Wait: got %v, want 0 or more", p.Wait))
	}
	if p.Datagrams < 0 || p.Datagrams > 10 {
		errs = append(errs, fmt.Errorf("probe: UDP.Datagrams: got %d, want 0 to 10", p.Datagrams))
	}
	if len(p.Payload) > 65507 {
		errs = append(errs, fmt.Errorf("probe: UDP.Payload: got %d bytes, want at most 65507", len(p.Payload)))
	}
	return errors.Join(errs...)
}

// silenceShare of the time left is used for waiting, so that the verdict of silence
// stands before the deadline, not with it.
const silenceShare = 0.9

// Probe implements [healthcheck.Prober].
func (p UDP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("udp", target, err)
	}
	if p.Payload == nil {
		p.Payload = make([]byte, 16)
	}
	if p.Datagrams == 0 {
		p.Datagrams = 2
	}
	if p.Wait == 0 {
		p.Wait = time.Second
	}
	a := begin(ctx, "udp", p.Dialer, target)
	defer a.end()
	var silent bool
	err := a.overUDP(func(conn net.Conn) (err error) {
		a.step = "answer"
		if len(p.Expect) > 0 {
			return a.exchange(fatalICMP{conn}, p.Payload, p.Datagrams-1, p.expected)
		}
		silent, err = p.listen(a, conn)
		return err
	})
	res := a.result(err)
	if silent && res.Verdict == healthcheck.Pass {
		res.Verdict, res.Note = healthcheck.AssumedAlive, "silence"
	}
	return res
}

func (p UDP) expected(b []byte) error {
	if bytes.Contains(b, p.Expect) {
		return nil
	}
	return ignoref("got %q, want %q in it", shorten(string(b)), shorten(string(p.Expect)))
}

// listen sends and waits for anything.
func (p UDP) listen(a *attempt, conn net.Conn) (silent bool, err error) {
	left := time.Duration(float64(time.Until(a.deadline)) * silenceShare)
	wait := min(p.Wait, left/time.Duration(p.Datagrams))
	buf := make([]byte, maxDatagram)
	var ignored error
	asked := false
	for range p.Datagrams {
		err := a.try(conn, p.Payload, buf, time.Now().Add(wait), func([]byte) error { return nil }, &ignored)
		if err == nil || !isTimeout(err) || a.ctx.Err() != nil {
			return false, err
		}
		if _, unsent := errors.AsType[unsentError](err); !unsent {
			asked = true
		}
	}
	if !asked {
		return false, localError{errors.New("no time to send a datagram")}
	}
	return true, nil
}
