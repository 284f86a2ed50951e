package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/healthcheck"
)

// Postgres sends a start-up message and takes any request for authentication for life:
// no password is sent. An error is a failure, unless ErrorPasses is set. The zero
// Postgres works. It is a plain value, safe for concurrent use.
type Postgres struct {
	Dialer   Dialer // nil: the system's choices
	User     string // default "postgres"
	Database string // default: as User
	// ErrorPasses takes an error, such as an unknown user, for life too, except one
	// that says the server cannot serve: too many connections, starting up or
	// shutting down (SQLSTATE classes 53, 57 and 58).
	ErrorPasses bool
}

// Validate reports all faults of p.
func (p Postgres) Validate() error {
	var errs []error
	for _, f := range []struct{ name, v string }{{"User", p.User}, {"Database", p.Database}} {
		if len(f.v) > 256 || strings.ContainsRune(f.v, 0) {
			errs = append(errs, fmt.Errorf("probe: Postgres.%s: got %q, want at most 256 bytes without NUL", f.name, shorten(f.v)))
		}
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p Postgres) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("postgres", target, err)
	}
	return askOverTCP(ctx, "postgres", p.Dialer, target, maxReply, func(s *stream) error {
		s.step = "startup"
		if err := s.send(p.startup()); err != nil {
			return err
		}
		note, err := p.readReply(s.reader)
		s.note = note
		if err == nil {
			s.farewell("X\x00\x00\x00\x04") // Terminate
		}
		return err
	})
}

// startup is length (4) | version 3.0 (4) | name 0 value 0 … | 0.
func (p Postgres) startup() []byte {
	user := p.User
	if user == "" {
		user = "postgres"
	}
	b := []byte{0, 0, 0, 0, 0, 3, 0, 0}
	b = append(append(append(b, "user\x00"...), user...), 0)
	if p.Database != "" {
		b = append(append(append(b, "database\x00"...), p.Database...), 0)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

// maxPostgres bounds one message.
const maxPostgres = 16 << 10

// readReply reads messages: type | length (4, itself included) | content.
func (p Postgres) readReply(r *reader) (note string, err error) {
	for range 4 {
		typ, err := r.readByte()
		if err != nil {
			return "", err
		}
		if typ != 'R' && typ != 'E' && typ != 'N' && typ != 'v' {
			return "", healthcheck.Mismatch([]byte{typ}, "R (authentication) or E (error)")
		}
		b, err := r.readFull(4)
		if err != nil {
			return "", tooShort(err)
		}
		n := binary.BigEndian.Uint32(b)
		if n < 4 || n > maxPostgres {
			return "", healthcheck.Mismatch(fmt.Sprintf("message length %d", n), fmt.Sprintf("4 to %d", maxPostgres))
		}
		if b, err = r.readFull(int(n) - 4); err != nil {
			return "", tooShort(err)
		}
		switch typ {
		case 'R':
			if len(b) < 4 {
				return "", healthcheck.Mismatch(b, "a kind of authentication of four bytes")
			}
			return "", nil
		case 'E':
			return p.judgeError(b)
		}
	}
	return "", healthcheck.Mismatch("notices only", "R (authentication) or E (error)")
}

// judgeError judges an ErrorResponse: field type | value | 0 … | 0.
func (p Postgres) judgeError(b []byte) (note string, err error) {
	var state, text string
	for len(b) > 1 {
		v, rest, ok := bytes.Cut(b[1:], []byte{0})
		if !ok {
			break
		}
		switch b[0] {
		case 'C':
			state = string(v)
		case 'M':
			text = string(v)
		}
		b = rest
	}
	msg := fmt.Sprintf("error %s: %s", state, text)
	if p.ErrorPasses && len(state) == 5 && !unable(state) {
		return shorten(msg) + " counts as alive", nil
	}
	return "", healthcheck.Mismatch(msg, "a request for authentication")
}

// unable reports whether an SQLSTATE says that the server cannot serve now.
func unable(state string) bool {
	switch state[:2] {
	case "53", "57", "58":
		return true
	}
	return false
}
