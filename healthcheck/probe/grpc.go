package probe

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/lbprim/lbprim/healthcheck"
)

// GRPC calls grpc.health.v1.Health/Check and wants SERVING. The zero GRPC asks in clear
// text for the server as a whole. It is a plain value, safe for concurrent use.
type GRPC struct {
	Dialer    Dialer // nil: the system's choices
	Service   string // empty: the server as a whole
	Authority string // default: the target
	// Secure has the call made inside TLS, with "h2" as the application protocol.
	Secure bool
	TLS    *tls.Config // see [TLS.Config]
}

// Validate reports all faults of p.
func (p GRPC) Validate() error {
	var errs []error
	if len(p.Service) > maxGRPC/2 {
		errs = append(errs, fmt.Errorf("probe: GRPC.Service: got %d bytes, want at most %d", len(p.Service), maxGRPC/2))
	}
	if !isVisible(p.Authority) {
		errs = append(errs, fmt.Errorf("probe: GRPC.Authority: got %q, want a name without blanks or control characters", p.Authority))
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p GRPC) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("grpc", target, err)
	}
	return askOverTCP(ctx, "grpc", p.Dialer, target, maxReply, func(s *stream) error {
		if p.Secure {
			s.step = "handshake"
			if err := s.startTLS(p.tlsConfig(s.target)); err != nil {
				return err
			}
			s.note = expiry(s.notAfter, time.Now())
		}
		s.step = "call"
		call := &grpcCall{fr: http2.NewFramer(s.conn, s.reader)}
		if err := call.send(s.conn, p.headers(s.target), p.request()); err != nil {
			return err
		}
		s.step = "reply"
		if err := call.receive(); err != nil {
			return err
		}
		return call.judge()
	})
}

func (p GRPC) tlsConfig(target netip.AddrPort) *tls.Config {
	cfg := clientConfig(p.TLS, target)
	if len(cfg.NextProtos) == 0 {
		cfg = cfg.Clone()
		cfg.NextProtos = []string{"h2"}
	}
	return cfg
}

func (p GRPC) headers(target netip.AddrPort) []hpack.HeaderField {
	scheme, authority := "http", p.Authority
	if p.Secure {
		scheme = "https"
	}
	if authority == "" {
		authority = string(appendHost(nil, target))
	}
	return []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: "/grpc.health.v1.Health/Check"},
		{Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "user-agent", Value: "lbprim-healthcheck"},
	}
}

// request is a message: compressed 0 | length (4) | HealthCheckRequest { service = 1 }.
func (p GRPC) request() []byte {
	var m []byte
	if p.Service != "" {
		m = append(m, 1<<3|2)
		m = binary.AppendUvarint(m, uint64(len(p.Service)))
		m = append(m, p.Service...)
	}
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m)))
	return append(b, m...)
}

// maxGRPC bounds a message; real ones have two bytes.
const maxGRPC = 4 << 10

// grpcCall is one unary call on a fresh HTTP/2 connection: stream 1 and no other.
type grpcCall struct {
	fr      *http2.Framer
	status  string // :status
	grpc    string // grpc-status
	message string // grpc-message
	data    []byte
}

func (c *grpcCall) send(w io.Writer, headers []hpack.HeaderField, body []byte) error {
	c.fr.SetMaxReadFrameSize(1 << 14)
	c.fr.MaxHeaderListSize = 16 << 10
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block headerBlock
	enc := hpack.NewEncoder(&block)
	for _, h := range headers {
		if err := enc.WriteField(h); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, http2.ClientPreface); err != nil {
		return err
	}
	return errors.Join(
		c.fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}),
		c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true}),
		c.fr.WriteData(1, true, body),
	)
}

type headerBlock []byte

func (b *headerBlock) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// receive reads frames until the stream ends.
func (c *grpcCall) receive() error {
	for {
		f, err := c.fr.ReadFrame()
		if err != nil {
			if detail := c.fr.ErrorDetail(); detail != nil {
				err = fmt.Errorf("%w (%w)", err, detail)
			}
			return err
		}
		end, err := c.frame(f)
		if end || err != nil {
			return err
		}
	}
}

func (c *grpcCall) frame(f http2.Frame) (end bool, err error) {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = c.fr.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = c.fr.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame:
		if f.LastStreamID < 1 || f.ErrCode != http2.ErrCodeNo {
			err = healthcheck.Mismatch(fmt.Sprintf("GOAWAY %v", f.ErrCode), "an answer")
		}
	case *http2.RSTStreamFrame:
		err = healthcheck.Mismatch(fmt.Sprintf("RST_STREAM %v", f.ErrCode), "an answer")
	case *http2.MetaHeadersFrame:
		if f.StreamID == 1 {
			c.headers(f)
			end = f.StreamEnded()
		}
	case *http2.DataFrame:
		if f.StreamID == 1 {
			if c.data = append(c.data, f.Data()...); len(c.data) > maxGRPC {
				err = errTooLong
			}
			end = f.StreamEnded()
		}
	}
	return end, err
}

func (c *grpcCall) headers(f *http2.MetaHeadersFrame) {
	for _, h := range f.Fields {
		switch h.Name {
		case ":status":
			c.status = h.Value
		case "grpc-status":
			c.grpc = h.Value
		case "grpc-message":
			c.message = h.Value
		}
	}
}

// judge decides after the stream ended.
func (c *grpcCall) judge() error {
	switch {
	case c.status != "200":
		return healthcheck.Mismatch("HTTP status "+c.status, "200")
	case c.grpc != "0":
		code := c.grpc
		if n, err := strconv.Atoi(code); err == nil && n >= 0 && n < len(grpcCodes) {
			code = grpcCodes[n]
		}
		return healthcheck.Mismatch("grpc-status "+code+" "+c.message, "OK")
	}
	status, err := parseHealthResponse(c.data)
	if err != nil {
		return err
	}
	if status != 1 {
		name := fmt.Sprintf("status %d", status)
		if names := [...]string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}; status < uint64(len(names)) {
			name = names[status]
		}
		return healthcheck.Mismatch(name, "SERVING")
	}
	return nil
}

var grpcCodes = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
	"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// parseHealthResponse returns the status in a message HealthCheckResponse { status = 1 },
// which is 0 where the field is left out. Other fields are skipped.
func parseHealthResponse(b []byte) (status uint64, err error) {
	bad := func() (uint64, error) { return 0, healthcheck.Mismatch(b, "one whole HealthCheckResponse") }
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:])) != uint64(len(b)-5) {
		return bad()
	}
	for m := b[5:]; len(m) > 0; {
		key, n := binary.Uvarint(m)
		if n <= 0 {
			return bad()
		}
		m = m[n:]
		var skip uint64
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(m)
			if n <= 0 {
				return bad()
			}
			if key>>3 == 1 {
				status = v
			}
			skip = uint64(n)
		case 1:
			skip = 8
		case 2:
			v, n := binary.Uvarint(m)
			if n <= 0 || v > uint64(len(m)) {
				return bad()
			}
			skip = uint64(n) + v
		case 5:
			skip = 4
		default:
			return bad()
		}
		if skip > uint64(len(m)) {
			return bad()
		}
		m = m[skip:]
	}
	return status, nil
}
