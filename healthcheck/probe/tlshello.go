package probe

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/healthcheck"
)

// TLSHello sends a ClientHello with an empty session ID and takes any TLS reply, an
// alert too, for life. The handshake goes no further, so that the server computes
// little. The zero TLSHello works. It is a plain value, safe for concurrent use.
type TLSHello struct {
	Dialer     Dialer // nil: the system's choices
	ServerName string // sent as server_name, unless empty
}

// Validate reports the faults of p.
func (p TLSHello) Validate() error {
	if len(p.ServerName) > 255 || !isVisible(p.ServerName) || strings.HasSuffix(p.ServerName, ".") {
		return fmt.Errorf("probe: TLSHello.ServerName: got %q, want a host name of at most 255 bytes without a final dot", shorten(p.ServerName))
	}
	return nil
}

// Probe implements [healthcheck.Prober].
func (p TLSHello) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("tls hello", target, err)
	}
	return askOverTCP(ctx, "tls hello", p.Dialer, target, 1<<15, func(s *stream) error {
		s.step = "ClientHello"
		if err := s.send(clientHello(p.ServerName)); err != nil {
			return err
		}
		s.step = "reply"
		note, err := readTLSReply(s.reader)
		s.note = note
		return err
	})
}

// clientHello returns a record with a hello for TLS 1.0 to 1.3 (RFC 8446 section 4.1.2,
// RFC 5246 section 7.4.1.2). The empty list of key shares has a TLS 1.3 server
// answer with HelloRetryRequest, before it computes anything.
func clientHello(name string) []byte {
	b := make([]byte, 0, 256)
	u16 := func(v uint16) { b = binary.BigEndian.AppendUint16(b, v) }
	b = append(b, 22)     // handshake
	u16(tls.VersionTLS10) // record version, as most tolerate it
	record := vector(&b)  // of the record
	b = append(b, 1, 0)   // ClientHello; the length has three bytes
	hello := vector(&b)   //
	u16(tls.VersionTLS12) // legacy_version
	b = append(b, make([]byte, 32)...)
	_, _ = rand.Read(b[len(b)-32:]) // never fails
	b = append(b, 0)                // session ID
	suites := vector(&b)
	for _, id := range append([]uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}, allSuites()...) {
		u16(id)
	}
	suites()
	b = append(b, 1, 0) // no compression
	extensions := vector(&b)
	if name != "" {
		u16(0) // server_name
		ext := vector(&b)
		list := vector(&b)
		b = append(b, 0)
		host := vector(&b)
		b = append(b, name...)
		host()
		list()
		ext()
	}
	extension := func(id uint16, content ...byte) {
		u16(id)
		u16(uint16(len(content)))
		b = append(b, content...)
	}
	extension(10, 0, 8, 0, 29, 0, 23, 0, 24, 0, 25)                                  // groups
	extension(11, 1, 0)                                                              // point formats
	extension(13, 0, 20, 4, 3, 5, 3, 6, 3, 8, 4, 8, 5, 8, 6, 4, 1, 5, 1, 6, 1, 2, 1) // signature algorithms
	extension(43, 8, 3, 4, 3, 3, 3, 2, 3, 1)                                         // versions
	extension(51, 0, 0)                                                              // key shares
	extension(0xff01, 0)                                                             // renegotiation info
	extensions()
	hello()
	record()
	return b
}

// vector begins a vector with a length of two bytes; the returned function ends it.
func vector(b *[]byte) (end func()) {
	at := len(*b)
	*b = append(*b, 0, 0)
	return func() { binary.BigEndian.PutUint16((*b)[at:], uint16(len(*b)-at-2)) }
}

// readTLSReply reads the beginning of a record:
//
//	type | version (2) | length (2) | fragment
//
// that is a handshake message or an alert.
func readTLSReply(r *reader) (note string, err error) {
	var h [5]byte
	const want = "a TLS record"
	for i := range h {
		if h[i], err = r.readByte(); err != nil {
			if i > 0 {
				err = &cutError{seen: string(h[:i]), err: err}
			}
			return "", err
		}
		if i == 0 && h[0] != 21 && h[0] != 22 || i == 1 && h[1] != 3 {
			return "", healthcheck.Mismatch(h[:i+1], want)
		}
	}
	n := int(binary.BigEndian.Uint16(h[3:]))
	if n == 0 || n > 1<<14 || h[0] == 21 && n != 2 {
		return "", healthcheck.Mismatch(h[:], want)
	}
	if h[0] == 22 {
		typ, err := r.readByte()
		if err == nil && typ != 2 {
			err = healthcheck.Mismatch([]byte{typ}, "a ServerHello")
		}
		return "", err
	}
	b, err := r.readFull(2)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%v counts as alive", tls.AlertError(b[1])), nil
}
