package lab

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// memSocket is a UDP socket, guarded by its host's lock. A connected one has a remote end.
type memSocket struct {
	h             *memHost
	local, remote netip.AddrPort
	changed       sync.Cond
	waiting       []segment
	closed        bool
	readBy        deadline
}

func (h *memHost) newSocket(local, remote netip.AddrPort) *memSocket {
	s := &memSocket{h: h, local: local, remote: remote}
	s.changed.L = &h.mu
	h.sockets[local] = s
	return s
}

// ListenPacket implements Host.
func (h *memHost) ListenPacket(_ context.Context, at netip.AddrPort) (net.PacketConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sockets[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(at), Err: syscall.EADDRINUSE}
	}
	return h.newSocket(at, netip.AddrPort{}), nil
}

func (h *memHost) bind(from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	local, err := h.source(from, to)
	if err != nil {
		return nil, err
	}
	return h.newSocket(local, to), nil
}

func (h *memHost) datagram(d segment) {
	s := h.sockets[d.dst]
	if s == nil || s.remote.IsValid() && s.remote != d.src {
		return
	}
	s.waiting = append(s.waiting, d)
	s.changed.Signal()
}

// ReadFrom implements net.PacketConn.
func (s *memSocket) ReadFrom(b []byte) (int, net.Addr, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, nil, s.wrap("read", net.ErrClosed)
		case s.readBy.over():
			return 0, nil, s.wrap("read", os.ErrDeadlineExceeded)
		case len(s.waiting) > 0:
			d := s.waiting[0]
			s.waiting = s.waiting[1:]
			return copy(b, d.payload), net.UDPAddrFromAddrPort(d.src), nil
		}
		s.changed.Wait()
	}
}

// Read implements net.Conn.
func (s *memSocket) Read(b []byte) (int, error) {
	n, _, err := s.ReadFrom(b)
	return n, err
}

// WriteTo implements net.PacketConn.
func (s *memSocket) WriteTo(b []byte, to net.Addr) (int, error) {
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, s.wrap("write", syscall.EINVAL)
	}
	return s.write(b, u.AddrPort())
}

// Write implements net.Conn.
func (s *memSocket) Write(b []byte) (int, error) { return s.write(b, s.remote) }

func (s *memSocket) write(b []byte, to netip.AddrPort) (int, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	switch {
	case s.closed:
		return 0, s.wrap("write", net.ErrClosed)
	case !to.IsValid():
		return 0, s.wrap("write", syscall.EDESTADDRREQ)
	case len(b) > 1400:
		return 0, s.wrap("write", syscall.EMSGSIZE)
	}
	s.h.send(segment{proto: protoUDP, src: s.local, dst: to, payload: b})
	return len(b), nil
}

// Close implements net.Conn.
func (s *memSocket) Close() error {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.shut()
	return nil
}

func (s *memSocket) shut() {
	if !s.closed {
		s.closed = true
		delete(s.h.sockets, s.local)
		s.changed.Broadcast()
	}
}

func (s *memSocket) wrap(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
}

// LocalAddr implements net.Conn.
func (s *memSocket) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(s.local) }

// RemoteAddr implements net.Conn.
func (s *memSocket) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(s.remote) }

// SetDeadline implements net.Conn.
func (s *memSocket) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (s *memSocket) SetReadDeadline(t time.Time) error {
	s.readBy.set(t, &s.h.mu, &s.changed)
	return nil
}

// SetWriteDeadline implements net.Conn; writing never waits.
func (s *memSocket) SetWriteDeadline(time.Time) error { return nil }
