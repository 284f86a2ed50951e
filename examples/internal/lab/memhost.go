package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
)

// memHost is a host with a TCP and UDP of its own, just large enough for a network that neither
// loses nor reorders packets.
type memHost struct {
	net      *memory
	diverted bool // a server: all it sends passes the device

	inbox struct {
		sync.Mutex
		ready   sync.Cond
		packets [][]byte
		stopped bool
	}

	mu        sync.Mutex // guards all below, and every connection of the host
	addrs     []netip.Addr
	conns     map[tuple]*memConn
	listeners map[netip.AddrPort]*memListener
	sockets   map[netip.AddrPort]*memSocket
	port      uint16
	iss       uint32
}

type tuple struct{ local, remote netip.AddrPort }

func newMemHost(m *memory, diverted bool, iss uint32) *memHost {
	h := &memHost{
		net: m, diverted: diverted, iss: iss, port: 20000,
		conns: map[tuple]*memConn{}, listeners: map[netip.AddrPort]*memListener{}, sockets: map[netip.AddrPort]*memSocket{},
	}
	h.inbox.ready.L = &h.inbox
	return h
}

func (h *memHost) own(addrs ...netip.Addr) {
	h.addrs = append(h.addrs, addrs...)
	for _, a := range addrs {
		h.net.hosts[a] = h
	}
}

// balancer reports whether h is the host the device is in: the one on every cable.
func (h *memHost) balancer() bool { return h.addrs[0] == balancerAddr(false, 0) }

// enqueue never waits, so that nobody can wait for somebody who waits for him.
func (h *memHost) enqueue(b []byte) {
	h.inbox.Lock()
	defer h.inbox.Unlock()
	h.inbox.packets = append(h.inbox.packets, b)
	h.inbox.ready.Signal()
}

func (h *memHost) stop() {
	h.inbox.Lock()
	h.inbox.stopped = true
	h.inbox.ready.Signal()
	h.inbox.Unlock()

	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.fail(os.ErrClosed)
	}
	for _, l := range h.listeners {
		l.shut()
	}
	for _, s := range h.sockets {
		s.shut()
	}
}

func (h *memHost) run() {
	for {
		h.inbox.Lock()
		for len(h.inbox.packets) == 0 && !h.inbox.stopped {
			h.inbox.ready.Wait()
		}
		packets := h.inbox.packets
		h.inbox.packets = nil
		stopped := h.inbox.stopped
		h.inbox.Unlock()
		if stopped {
			return
		}
		for _, b := range packets {
			s, err := parse(b)
			if errors.Is(err, errDamaged) {
				h.net.corrupt.Add(1)
			}
			if err != nil {
				continue
			}
			h.mu.Lock()
			if s.proto == protoUDP {
				h.datagram(s)
			} else {
				h.segment(s)
			}
			h.mu.Unlock()
		}
	}
}

// send is called with h.mu held; the way to the device may wait for the balancer, which never waits for h.
func (h *memHost) send(s segment) { h.net.forward(h, s.bytes()) }

// source chooses the local end of a connection.
func (h *memHost) source(from netip.Addr, to netip.AddrPort) (netip.AddrPort, error) {
	if !from.IsValid() {
		for _, a := range h.addrs {
			if a.Is4() == to.Addr().Is4() {
				from = a
				break
			}
		}
	}
	if !from.IsValid() || from.Is4() != to.Addr().Is4() {
		return netip.AddrPort{}, syscall.EADDRNOTAVAIL
	}
	for range 1 << 16 {
		if h.port++; h.port < 20000 {
			h.port = 20000
		}
		local := netip.AddrPortFrom(from, h.port)
		if h.conns[tuple{local, to}] == nil && h.sockets[local] == nil {
			return local, nil
		}
	}
	return netip.AddrPort{}, syscall.EADDRINUSE
}

// Dial implements Host.
func (h *memHost) Dial(ctx context.Context, network string, from netip.Addr, to netip.AddrPort) (c net.Conn, err error) {
	switch network {
	case "tcp":
		c, err = h.connect(ctx, from, to)
	case "udp":
		c, err = h.bind(from, to)
	default:
		err = net.UnknownNetworkError(network)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return c, nil
}
