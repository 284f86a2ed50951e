package probe

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// RTSP sends OPTIONS with CSeq 1 and wants a status of 200 to 299 (RFC 7826 section
// 13.1, RFC 2326 section 10.1). The zero RTSP works. It is a plain value, safe for
// concurrent use.
type RTSP struct {
	Dialer Dialer // nil: the system's choices
	URL    string // what is asked about; default "*", the server itself
}

// Validate reports the faults of p.
func (p RTSP) Validate() error {
	if !isVisible(p.URL) {
		return fmt.Errorf("probe: RTSP.URL: got %q, want a URL without blanks or control characters", p.URL)
	}
	return nil
}

// Probe implements [healthcheck.Prober].
func (p RTSP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("rtsp", target, err)
	}
	return askOverTCP(ctx, "rtsp", p.Dialer, target, maxReply, func(s *stream) error {
		url := p.URL
		if url == "" {
			url = "*"
		}
		s.step = "OPTIONS"
		if err := s.sendString("OPTIONS " + url + " RTSP/1.0\r\nCSeq: 1\r\nUser-Agent: lbprim-healthcheck\r\n\r\n"); err != nil {
			return err
		}
		st, err := readHTTPStatus(s.reader, "RTSP/")
		if err == nil && st.code > 299 {
			err = healthcheck.Mismatch(st.line, "status 200-299")
		}
		return err
	})
}
