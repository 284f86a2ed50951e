package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// Agent asks an agent on the server how it is, in HAProxy's agent check format; see
// [healthcheck.ParseAgent]. The result carries the report. The zero Agent sends nothing
// and reads a line. It is a plain value, safe for concurrent use.
type Agent struct {
	Dialer Dialer // nil: the system's choices
	Send   string // sent first; should end with a newline
}

// maxAgent bounds an agent's line.
const maxAgent = 4 << 10

// Probe implements [healthcheck.Prober].
func (p Agent) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return overTCP(ctx, "agent", p.Dialer, target, maxAgent, func(s *stream) error {
		if p.Send != "" {
			s.step = "request"
			if err := s.sendString(p.Send); err != nil {
				return err
			}
		}
		s.step = "report"
		line, err := readAgentLine(s.reader)
		if err != nil {
			return err
		}
		report, err := healthcheck.ParseAgent(string(line))
		if err != nil {
			return fmt.Errorf("got %q: %w", shorten(string(line)), err)
		}
		res := report.Result()
		s.agent = res.Agent
		return res.Err
	})
}

// readAgentLine reads a line, which the end of the connection may end, too.
func readAgentLine(r *reader) ([]byte, error) {
	line, err := r.readLine()
	if cut, ok := errors.AsType[*cutError](err); ok && !isTimeout(cut.err) && len(r.line) > 0 && isEOF(cut.err) {
		return r.line, nil
	}
	return line, err
}
