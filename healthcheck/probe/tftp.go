package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// TFTP asks to read a file (RFC 1350) and takes any TFTP reply for life, an error such
// as "file not found" too. A transfer that begins is ended at once. The zero TFTP lacks
// the File. It is a plain value, safe for concurrent use.
type TFTP struct {
	Socket Socket // options of the socket; replies come from a port of their own
	File   string // required; up to 400 bytes
	// Retries is how often a request is repeated that nothing answers; default 2,
	// negative: none.
	Retries int
}

// Validate reports all faults of p.
func (p TFTP) Validate() error {
	var errs []error
	switch {
	case p.File == "":
		errs = append(errs, errors.New("probe: TFTP.File: got none, want the name of a file to ask for"))
	case len(p.File) > 400 || strings.ContainsRune(p.File, 0):
		errs = append(errs, fmt.Errorf("probe: TFTP.File: got %q, want at most 400 bytes without NUL", shorten(p.File)))
	}
	if p.Retries > 10 {
		errs = append(errs, fmt.Errorf("probe: TFTP.Retries: got %d, want at most 10", p.Retries))
	}
	return errors.Join(append(errs, p.Socket.Validate())...)
}

// Opcodes (RFC 1350 section 5, RFC 2347).
const (
	tftpRead  = 1
	tftpData  = 3
	tftpError = 5
	tftpOACK  = 6
)

// Probe implements [healthcheck.Prober].
func (p TFTP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("tftp", target, err)
	}
	a := begin(ctx, "tftp", p.Socket, target)
	defer a.end()
	return a.result(p.talk(a))
}

func (p TFTP) talk(a *attempt) error {
	conn, err := p.Socket.listenUDP(a.ctx, a.target)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	a.step = "read request"
	t := &tftpConn{UDPConn: conn, to: netip.AddrPortFrom(a.target.Addr().Unmap(), a.target.Port())}
	var note string
	err = a.exchange(t, tftpRequest(p.File), retries(p.Retries), func(b []byte) (err error) {
		note, err = parseTFTP(b)
		return err
	})
	if err != nil {
		return err
	}
	a.note = note
	if note == "" { // the server is sending and would repeat itself
		b := binary.BigEndian.AppendUint16(nil, tftpError)
		b = append(b, "\x00\x00health check\x00"...)
		_, _ = conn.WriteToUDPAddrPort(b, t.from)
	}
	return nil
}

// tftpConn sends to the server's well-known port and takes datagrams from any port of
// the server: it answers from a port made for the transfer (RFC 1350 section 4).
type tftpConn struct {
	*net.UDPConn
	to, from netip.AddrPort
}

func (c *tftpConn) Write(b []byte) (int, error) { return c.WriteToUDPAddrPort(b, c.to) }

func (c *tftpConn) Read(b []byte) (int, error) {
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil || from.Addr().Unmap().WithZone("") == c.to.Addr().WithZone("") {
			c.from = from
			return n, err
		}
	}
}

// tftpRequest is opcode (2) | file | 0 | mode | 0.
func tftpRequest(file string) []byte {
	b := binary.BigEndian.AppendUint16(nil, tftpRead)
	return append(append(b, file...), "\x00octet\x00"...)
}

// parseTFTP says what a reply is: an empty note means a transfer has begun.
func parseTFTP(b []byte) (note string, err error) {
	if len(b) < 4 {
		return "", healthcheck.Mismatch(b, "a TFTP reply of at least 4 bytes")
	}
	switch op := binary.BigEndian.Uint16(b); op {
	case tftpData, tftpOACK:
		return "", nil
	case tftpError:
		text, _, _ := strings.Cut(string(b[4:]), "\x00")
		return fmt.Sprintf("error %d (%s) counts as alive", binary.BigEndian.Uint16(b[2:]), shorten(text)), nil
	default:
		return "", healthcheck.Mismatch(fmt.Sprintf("opcode %d", op), "DATA, ERROR or OACK")
	}
}
