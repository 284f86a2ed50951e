package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/healthcheck"
)

// MySQL wants the greeting of a MySQL or MariaDB server, and with a User a login
// without password as well. Without a User servers may count the connection as aborted,
// and lock out a host after max_connect_errors of them. The zero MySQL works. It is a
// plain value, safe for concurrent use.
type MySQL struct {
	Dialer Dialer // nil: the system's choices
	// User, if not empty, must be able to log in without a password. It needs no
	// rights.
	User string
}

// Validate reports the faults of p.
func (p MySQL) Validate() error {
	if len(p.User) > 128 || strings.ContainsRune(p.User, 0) {
		return fmt.Errorf("probe: MySQL.User: got %q, want at most 128 bytes without NUL", shorten(p.User))
	}
	return nil
}

// Probe implements [healthcheck.Prober].
func (p MySQL) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("mysql", target, err)
	}
	return overTCP(ctx, "mysql", p.Dialer, target, maxReply, p.talk)
}

func (p MySQL) talk(s *stream) error {
	s.step = "greeting"
	version, err := readMySQLGreeting(s.reader)
	if err != nil {
		return err
	}
	s.note = version
	if p.User == "" {
		return nil
	}
	s.step = "login"
	if err := s.send(mysqlLogin(p.User)); err != nil {
		return err
	}
	if err := readMySQLLogin(s.reader, s.send); err != nil {
		return err
	}
	s.farewell("\x01\x00\x00\x00\x01") // COM_QUIT
	return nil
}

// Packets of the MySQL protocol:
//
//	length (3, little endian) | sequence | payload
//
// The payload of an answer begins with 0 (OK), 0xff (error), 0xfe (other
// authentication) or, of a greeting, with the protocol's version.
const (
	mysqlOK          = 0x00
	mysqlAuthMore    = 0x01
	mysqlVersion10   = 0x0a
	mysqlAuthSwitch  = 0xfe
	mysqlErr         = 0xff
	maxMySQLGreeting = 4 << 10
)

func readMySQLPacket(r *reader) (seq byte, payload []byte, err error) {
	h, err := r.readFull(4)
	if err != nil {
		return 0, nil, tooShort(err)
	}
	n := int(h[0]) | int(h[1])<<8 | int(h[2])<<16
	if n == 0 || n > maxMySQLGreeting {
		return 0, nil, healthcheck.Mismatch(h, fmt.Sprintf("a packet of 1 to %d bytes", maxMySQLGreeting))
	}
	payload, err = r.readFull(n)
	return h[3], payload, tooShort(err)
}

// readMySQLGreeting returns the server's version: protocol version | server version | 0 | …
func readMySQLGreeting(r *reader) (version string, err error) {
	_, b, err := readMySQLPacket(r)
	if err != nil {
		return "", err
	}
	switch b[0] {
	case mysqlErr:
		return "", healthcheck.Mismatch(mysqlError(b), "a greeting")
	case mysqlVersion10:
		v, _, ok := bytes.Cut(b[1:], []byte{0})
		if !ok || len(v) == 0 {
			return "", healthcheck.Mismatch(b, "a greeting with the server's version")
		}
		return shorten(string(v)), nil
	}
	return "", healthcheck.Mismatch(b, "a greeting of protocol version 10")
}

// mysqlError is 0xff | code (2) | [# state (5)] | message.
func mysqlError(b []byte) string {
	if len(b) < 3 {
		return "an error without code"
	}
	code, text := binary.LittleEndian.Uint16(b[1:]), b[3:]
	if len(text) >= 6 && text[0] == '#' {
		text = text[6:]
	}
	return fmt.Sprintf("error %d: %s", code, text)
}

// mysqlLogin is a HandshakeResponse41 with an empty password:
//
//	capabilities (4) | max packet (4) | character set | 23 zeros | user | 0 | 0 | plugin | 0
func mysqlLogin(user string) []byte {
	const protocol41, secure, pluginAuth = 0x200, 0x8000, 0x80000
	b := []byte{0, 0, 0, 1}
	b = binary.LittleEndian.AppendUint32(b, protocol41|secure|pluginAuth)
	b = binary.LittleEndian.AppendUint32(b, 1<<16)
	b = append(b, 33) // utf8
	b = append(b, make([]byte, 23)...)
	b = append(append(b, user...), 0)
	b = append(b, 0) // no password
	b = append(append(b, "mysql_native_password"...), 0)
	b[0] = byte(len(b) - 4)
	return b
}

// readMySQLLogin reads the answers to the login. Whatever plugin the server switches to,
// an empty answer is that of an account without password.
func readMySQLLogin(r *reader, send func([]byte) error) error {
	for range 4 {
		seq, b, err := readMySQLPacket(r)
		if err != nil {
			return err
		}
		switch b[0] {
		case mysqlOK:
			return nil
		case mysqlAuthMore:
		case mysqlAuthSwitch:
			if err := send([]byte{0, 0, 0, seq + 1}); err != nil {
				return err
			}
		case mysqlErr:
			return healthcheck.Mismatch(mysqlError(b), "OK")
		default:
			return healthcheck.Mismatch(b, "OK")
		}
	}
	return healthcheck.Mismatch("more and more authentication", "OK")
}
