package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	mss    = 1440 // fits an IPv6 packet of 1,500 bytes
	window = 65535
)

// memConn is a TCP connection (RFC 9293) over a network without loss: no timers, no
// retransmission, a fixed window. It is guarded by its host's lock.
type memConn struct {
	h             *memHost
	local, remote netip.AddrPort
	changed       sync.Cond
	listener      *memListener // until the handshake is over

	open          bool
	next, unacked uint32 // sequence numbers: next to send, oldest not acknowledged
	want          uint32 // next expected
	received      []byte
	theyEnded     bool  // their FIN has come
	weEnded       bool  // our FIN is sent
	err           error // reset, or closed by us
	readBy        deadline
	writeBy       deadline
}

func (h *memHost) newConn(local, remote netip.AddrPort) *memConn {
	h.iss += 64007
	c := &memConn{h: h, local: local, remote: remote, next: h.iss, unacked: h.iss}
	c.changed.L = &h.mu
	h.conns[tuple{local, remote}] = c
	return c
}

func (h *memHost) connect(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	local, err := h.source(from, to)
	if err != nil {
		return nil, err
	}
	c := h.newConn(local, to)
	c.send(flagSYN, nil)
	c.next++
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	for !c.open && c.err == nil {
		if ctx.Err() != nil {
			c.fail(ctx.Err())
			break
		}
		c.changed.Wait()
	}
	if c.err != nil {
		return nil, c.err
	}
	return c, nil
}

func (c *memConn) send(flags byte, payload []byte) {
	s := segment{proto: protoTCP, src: c.local, dst: c.remote, seq: c.next, flags: flags, payload: payload}
	if flags&flagACK != 0 {
		s.ack = c.want
	}
	c.h.send(s)
}

// fail ends the connection for both users of it.
func (c *memConn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	delete(c.h.conns, tuple{c.local, c.remote})
	c.changed.Broadcast()
}

// segment takes what has arrived.
func (h *memHost) segment(s segment) {
	c := h.conns[tuple{s.dst, s.src}]
	if c == nil {
		h.unexpected(s)
		return
	}
	switch {
	case s.flags&flagRST != 0:
		switch {
		case !c.open && s.ack == c.next:
			c.fail(syscall.ECONNREFUSED)
		case c.open && s.seq == c.want:
			c.fail(syscall.ECONNRESET)
		}
		return
	case !c.open && c.listener == nil: // we called
		if s.flags&(flagSYN|flagACK) != flagSYN|flagACK || s.ack != c.next {
			return
		}
		c.open, c.unacked, c.want = true, s.ack, s.seq+1
		c.send(flagACK, nil)
		c.changed.Broadcast()
		return
	case !c.open: // they called
		if s.flags&flagSYN != 0 || s.ack != c.next {
			return
		}
		c.open = true
		c.listener.deliver(c)
		c.listener = nil
	}
	if s.flags&flagACK != 0 && int32(s.ack-c.unacked) > 0 && int32(s.ack-c.next) <= 0 {
		c.unacked = s.ack
	}
	if s.seq != c.want {
		return // cannot happen in order; if it does, the transfer hangs and is found
	}
	if len(s.payload) > 0 || s.flags&flagFIN != 0 {
		if c.err != nil && len(s.payload) > 0 { // closed by us: nobody will read this
			c.send(flagRST|flagACK, nil)
			c.fail(c.err)
			return
		}
		c.received = append(c.received, s.payload...)
		c.want += uint32(len(s.payload))
		if s.flags&flagFIN != 0 {
			c.want++
			c.theyEnded = true
		}
		c.send(flagACK, nil)
	}
	if c.theyEnded && c.weEnded && c.unacked == c.next {
		delete(h.conns, tuple{c.local, c.remote})
	}
	c.changed.Broadcast()
}

// unexpected answers segments that belong to no connection.
func (h *memHost) unexpected(s segment) {
	if s.flags&flagRST != 0 {
		return
	}
	if l := h.listeners[s.dst]; l != nil && s.flags&(flagSYN|flagACK) == flagSYN {
		c := h.newConn(s.dst, s.src)
		c.listener, c.want = l, s.seq+1
		c.send(flagSYN|flagACK, nil)
		c.next++
		return
	}
	// RFC 9293, section 3.10.7.1.
	r := segment{proto: protoTCP, src: s.dst, dst: s.src, flags: flagRST}
	if s.flags&flagACK != 0 {
		r.seq = s.ack
	} else {
		r.flags |= flagACK
		r.ack = s.seq + uint32(len(s.payload))
		if s.flags&(flagSYN|flagFIN) != 0 {
			r.ack++
		}
	}
	h.send(r)
}

// Read implements net.Conn.
func (c *memConn) Read(b []byte) (int, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	for {
		switch {
		case c.readBy.over():
			return 0, c.wrap("read", os.ErrDeadlineExceeded)
		case len(c.received) > 0 && !errors.Is(c.err, net.ErrClosed):
			n := copy(b, c.received)
			c.received = c.received[n:]
			return n, nil
		case c.err != nil:
			return 0, c.wrap("read", c.err)
		case c.theyEnded:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		c.changed.Wait()
	}
}

// Write implements net.Conn.
func (c *memConn) Write(b []byte) (n int, err error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	for n < len(b) {
		inFlight := int(c.next - c.unacked)
		switch {
		case c.writeBy.over():
			return n, c.wrap("write", os.ErrDeadlineExceeded)
		case c.err != nil:
			return n, c.wrap("write", c.err)
		case inFlight >= window:
			c.changed.Wait()
			continue
		}
		piece := b[n:min(len(b), n+mss, n+window-inFlight)]
		c.send(flagACK|flagPSH, piece)
		c.next += uint32(len(piece))
		n += len(piece)
	}
	return n, nil
}

// Close implements net.Conn: what was written still arrives.
func (c *memConn) Close() error { return c.end(flagFIN | flagACK) }

// Abort resets the connection, as when the program behind it is killed.
func (c *memConn) Abort() error { return c.end(flagRST | flagACK) }

func (c *memConn) end(flags byte) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.err != nil {
		return nil
	}
	c.err = net.ErrClosed
	c.changed.Broadcast()
	if flags&flagRST == 0 && len(c.received) > 0 {
		flags = flagRST | flagACK // RFC 2525, section 2.17: say that data was not read
	}
	c.send(flags, nil)
	if flags&flagRST != 0 {
		delete(c.h.conns, tuple{c.local, c.remote})
		return nil
	}
	c.next++
	c.weEnded = true
	return nil
}

func (c *memConn) wrap(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// LocalAddr implements net.Conn.
func (c *memConn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c *memConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// SetDeadline implements net.Conn.
func (c *memConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *memConn) SetReadDeadline(t time.Time) error {
	c.readBy.set(t, &c.h.mu, &c.changed)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.writeBy.set(t, &c.h.mu, &c.changed)
	return nil
}

// deadline wakes those who wait when it is over.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) set(t time.Time, mu *sync.Mutex, changed *sync.Cond) {
	mu.Lock()
	defer mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			mu.Lock()
			defer mu.Unlock()
			changed.Broadcast()
		})
	}
	changed.Broadcast()
}
