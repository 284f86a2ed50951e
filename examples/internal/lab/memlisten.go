package lab

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// memListener is a listening TCP socket, guarded by its host's lock.
type memListener struct {
	h       *memHost
	at      netip.AddrPort
	changed sync.Cond
	waiting []*memConn
	closed  bool
}

// Listen implements Host.
func (h *memHost) Listen(_ context.Context, at netip.AddrPort) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: net.TCPAddrFromAddrPort(at), Err: syscall.EADDRINUSE}
	}
	l := &memListener{h: h, at: at}
	l.changed.L = &h.mu
	h.listeners[at] = l
	return l, nil
}

func (l *memListener) deliver(c *memConn) {
	if l.closed {
		c.send(flagRST|flagACK, nil)
		c.fail(net.ErrClosed)
		return
	}
	l.waiting = append(l.waiting, c)
	l.changed.Signal()
}

// Accept implements net.Listener.
func (l *memListener) Accept() (net.Conn, error) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	for len(l.waiting) == 0 && !l.closed {
		l.changed.Wait()
	}
	if l.closed {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	return c, nil
}

// Close implements net.Listener. Connections nobody has accepted are reset.
func (l *memListener) Close() error {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	l.shut()
	return nil
}

func (l *memListener) shut() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.h.listeners, l.at)
	for _, c := range l.waiting {
		c.send(flagRST|flagACK, nil)
		c.fail(net.ErrClosed)
	}
	l.waiting = nil
	l.changed.Broadcast()
}

// Addr implements net.Listener.
func (l *memListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }
