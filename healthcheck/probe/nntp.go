package probe

import (
	"context"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// NNTP waits for a greeting with code 200 or 201 and says QUIT (RFC 3977 section 5.1).
// The zero NNTP works. It is a plain value, safe for concurrent use.
type NNTP struct {
	Dialer Dialer // nil: the system's choices
}

// Probe implements [healthcheck.Prober].
func (p NNTP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "nntp", p.Dialer, target, maxReply, func(s *stream) error {
		s.step = "greeting"
		if err := readNNTPGreeting(s.reader); err != nil {
			return err
		}
		s.farewell("QUIT\r\n")
		return nil
	})
}

func readNNTPGreeting(r *reader) error {
	line, err := r.readLine()
	if err == nil && !hasWord(line, "200") && !hasWord(line, "201") {
		err = healthcheck.Mismatch(line, "200 or 201")
	}
	return err
}
