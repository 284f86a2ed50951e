package probe

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
)

// PNM sends a RealMedia (PNA) request without a file name and wants "PNA" in the
// reply, which an error reply has, too. The zero PNM works. It is a plain value, safe
// for concurrent use.
type PNM struct {
	Dialer Dialer // nil: the system's choices
}

// maxPNM bounds how far into the reply "PNA" is looked for. Servers send it first, or
// after a prefix of three bytes.
const maxPNM = 4 << 10

// Probe implements [healthcheck.Prober].
func (p PNM) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return askOverTCP(ctx, "pnm", p.Dialer, target, maxPNM, func(s *stream) error {
		s.step = "request"
		if err := s.send(pnmRequest()); err != nil {
			return err
		}
		s.step = "reply"
		return readPNM(s.reader)
	})
}

// pnmRequest is, in network order:
//
//	"PNA" | version 0x000A | chunks: id (2), length (2), data | 0x0000 and four bytes |
//	"c", length (2), client | 0x00 "R", length (2), path | "yB"
func pnmRequest() []byte {
	b := []byte("PNA\x00\x0a")
	b = append(b, 0, 0x14, 0, 2, 0, 1)
	b = append(b, 0, 5, 0, 4, 0, 0, 0xff, 0xff) // bandwidth
	b = append(b, 0, 0, 0, 0, 0, 0)
	const client = "lbprim-healthcheck"
	b = append(b, 'c')
	b = binary.BigEndian.AppendUint16(b, uint16(len(client)))
	b = append(b, client...)
	b = append(b, 0, 'R', 0, 0) // no path
	return append(b, "yB"...)
}

func readPNM(r *reader) error {
	var seen []byte
	for {
		c, err := r.readByte()
		if err != nil {
			if r.left == 0 {
				return healthcheck.Mismatch(seen, `"PNA" in the first 4096 bytes`)
			}
			return &cutError{seen: string(seen), err: err}
		}
		seen = append(seen, c)
		if n := len(seen); n >= 3 && string(seen[n-3:]) == "PNA" {
			return nil
		}
	}
}
