package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/lbprim/lbprim/healthcheck"
)

// ICMP sends echo requests, to IPv4 (RFC 792) or IPv6 (RFC 4443), and wants a reply.
// Replies are matched by source address, identifier, sequence number and a random
// cookie in the data, so that any number of probers may ask the same target at the
// same time. The target's port means nothing.
//
// It uses an unprivileged datagram socket where the system allows one (Linux:
// net.ipv4.ping_group_range), else a raw socket. The zero ICMP works. It is a plain
// value, safe for concurrent use.
type ICMP struct {
	Socket Socket // options of the socket
	// Every is how long a reply is waited for before the next request; default 2 s.
	Every time.Duration
	// Attempts is how many requests are sent at most, within the deadline; default 5.
	Attempts int
	// Size is how many bytes of data are sent; default 32, at least 16, where the
	// cookie is.
	Size int
}

// Bounds of the fields of [ICMP].
const (
	minEchoSize = cookieSize
	maxEchoSize = 1 << 15
	cookieSize  = 16
)

// Validate reports all faults of p.
func (p ICMP) Validate() error {
	var errs []error
	if p.Every < 0 {
		errs = append(errs, fmt.Errorf("probe: ICMP.Every: got %v, want 0 or more", p.Every))
	}
	if p.Attempts < 0 || p.Attempts > 100 {
		errs = append(errs, fmt.Errorf("probe: ICMP.Attempts: got %d, want 0 to 100", p.Attempts))
	}
	if p.Size != 0 && (p.Size < minEchoSize || p.Size > maxEchoSize) {
		errs = append(errs, fmt.Errorf("probe: ICMP.Size: got %d, want %d to %d", p.Size, minEchoSize, maxEchoSize))
	}
	return errors.Join(append(errs, p.Socket.Validate())...)
}

// echoConn is a socket for ICMP messages with one address.
type echoConn interface {
	// send sends a message, read returns the next from the address it is connected
	// with.
	send(b []byte) error
	read(b []byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
	// kernelID reports whether the kernel put an identifier of its own into what was
	// sent, and delivers only replies to it.
	kernelID() bool
}

// Probe implements [healthcheck.Prober].
func (p ICMP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("icmp", target, err)
	}
	if p.Every == 0 {
		p.Every = 2 * time.Second
	}
	if p.Attempts == 0 {
		p.Attempts = 5
	}
	if p.Size == 0 {
		p.Size = 32
	}
	a := begin(ctx, "icmp", p.Socket, target)
	defer a.end()
	return a.result(p.talk(a))
}

func (p ICMP) talk(a *attempt) error {
	a.step = "socket"
	if err := p.Socket.check(a.target.Addr()); err != nil {
		return err
	}
	conn, note, err := p.Socket.openEcho(a.ctx, a.target.Addr().Unmap())
	if err != nil {
		return err
	}
	defer conn.Close()
	a.note = note
	stop := context.AfterFunc(a.ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	a.step = "echo"
	e := newEcho(a.target.Addr().Unmap().Is4(), p.Size, conn.kernelID())
	var unreachable error
	for range p.Attempts {
		at := time.Now().Add(p.Every)
		if at.After(a.deadline) {
			at = a.deadline
		}
		err := e.try(a.ctx, conn, at)
		switch {
		case err == nil || a.ctx.Err() != nil:
			return err
		case isTimeout(err):
		case isICMP(err):
			unreachable = err
			a.pause(time.Until(at))
		default:
			return err
		}
		if !time.Now().Before(a.deadline) {
			break
		}
	}
	if unreachable != nil {
		return unreachable
	}
	return os.ErrDeadlineExceeded
}

// echo is a series of requests and what their replies look like.
type echo struct {
	v4       bool
	kernelID bool
	id       uint16
	first    uint16 // sequence number of the first request
	next     uint16
	data     []byte
	buf      []byte
}

func newEcho(v4 bool, size int, kernelID bool) *echo {
	var r [4]byte
	e := &echo{v4: v4, kernelID: kernelID, data: make([]byte, size), buf: make([]byte, size+512)}
	_, _ = rand.Read(r[:]) // never fails
	_, _ = rand.Read(e.data[:cookieSize])
	e.id, e.first = binary.BigEndian.Uint16(r[:]), binary.BigEndian.Uint16(r[2:])
	e.next = e.first
	return e
}

// request returns the next echo request. The kernel fills in the checksum of IPv6.
func (e *echo) request() ([]byte, error) {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(e.id), Seq: int(e.next), Data: e.data}}
	if !e.v4 {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	e.next++
	return m.Marshal(nil)
}

// try sends a request and waits for the reply to it or to an earlier one.
func (e *echo) try(ctx context.Context, conn echoConn, at time.Time) error {
	b, err := e.request()
	if err != nil {
		return err
	}
	if err := conn.SetReadDeadline(at); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := conn.send(b); err != nil {
		return err
	}
	for {
		n, err := conn.read(e.buf)
		if err != nil {
			return err
		}
		if e.matches(e.buf[:n]) {
			return nil
		}
	}
}

// matches reports whether b is an echo reply to one of the requests:
//
//	type | code | checksum (2) | identifier (2) | sequence (2) | data
func (e *echo) matches(b []byte) bool {
	reply := byte(0) // RFC 792
	if !e.v4 {
		reply = 129 // RFC 4443 section 4.2
	}
	if len(b) < 8 || b[0] != reply || b[1] != 0 {
		return false
	}
	if !e.kernelID && binary.BigEndian.Uint16(b[4:]) != e.id {
		return false
	}
	if binary.BigEndian.Uint16(b[6:])-e.first >= e.next-e.first {
		return false
	}
	return bytes.Equal(b[8:], e.data)
}
