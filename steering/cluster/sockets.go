package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// The first byte of a TCP connection says whose it is: TLS and plain streams are ours, all else is
// memberlist's.
const (
	firstTLS   = 0x16
	firstPlain = magic0
)

const (
	udpBuffer = 1 << 16
	// maxNew bounds connections that have not said yet what they are.
	maxNew = 256
	// firstWait is how long they have for it.
	firstWait = 5 * time.Second
	// mlQueue bounds packets and streams that memberlist has not taken.
	mlQueue = 256
)

// sockets are the two of a member, shared by memberlist, whose Transport they are, and the streams.
type sockets struct {
	net     Network
	bind    netip.AddrPort
	tcp     net.Listener
	udp     net.PacketConn
	packets chan *memberlist.Packet
	streams chan net.Conn
	own     func(net.Conn) // takes a connection of ours
	wg      sync.WaitGroup
	closed  chan struct{}
	once    sync.Once
	fresh   chan struct{}

	sent, received, dropped atomic.Uint64 // bytes, bytes, connections and packets
}

// openSockets opens both on one port.
func openSockets(ctx context.Context, n Network, bind netip.AddrPort) (*sockets, error) {
	s := &sockets{
		net: n, packets: make(chan *memberlist.Packet, mlQueue), streams: make(chan net.Conn, mlQueue), closed: make(chan struct{}),
		fresh: make(chan struct{}, maxNew),
	}
	var err error
	for range 20 {
		if s.tcp, err = n.Listen(ctx, "tcp", bind.String()); err != nil {
			break
		}
		port := s.tcp.Addr().(*net.TCPAddr).Port
		s.bind = netip.AddrPortFrom(bind.Addr().Unmap(), uint16(port))
		if s.udp, err = n.ListenPacket(ctx, "udp", s.bind.String()); err == nil {
			if u, ok := s.udp.(*net.UDPConn); ok {
				_ = u.SetReadBuffer(2 << 20) // as much as is allowed
			}
			return s, nil
		}
		s.tcp.Close()
		if bind.Port() != 0 {
			break
		}
	}
	return nil, fmt.Errorf("cluster: listen on %v: %w", bind, err)
}

// serve reads both sockets until they are closed.
func (s *sockets) serve() {
	s.wg.Go(s.readPackets)
	s.wg.Go(s.accept)
}

func (s *sockets) readPackets() {
	buf := make([]byte, udpBuffer)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			if s.over() || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // such as an ICMP error for one of ours
		}
		if n == 0 {
			continue
		}
		s.received.Add(uint64(n))
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		select {
		case s.packets <- p:
		default:
			s.dropped.Add(1)
		}
	}
}

func (s *sockets) over() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

func (s *sockets) accept() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			if s.over() || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors: not in a busy loop
			case <-s.closed:
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		select {
		case s.fresh <- struct{}{}:
			s.wg.Go(func() { s.sort(c) })
		default:
			s.dropped.Add(1)
			c.Close()
		}
	}
}

// sort finds out whose a connection is.
func (s *sockets) sort(c net.Conn) {
	release := sync.OnceFunc(func() { <-s.fresh })
	defer release()
	stop := s.closeWith(c)
	_ = c.SetReadDeadline(time.Now().Add(firstWait))
	pc := &peekedConn{Conn: c, r: bufio.NewReaderSize(c, 4096)}
	first, err := pc.r.Peek(1)
	_ = c.SetReadDeadline(time.Time{})
	if err != nil {
		stop()
		s.dropped.Add(1)
		c.Close()
		return
	}
	if first[0] == firstTLS || first[0] == firstPlain {
		defer stop()
		release()
		s.own(pc)
		return
	}
	stop()
	select {
	case s.streams <- pc:
	default:
		s.dropped.Add(1)
		c.Close()
	}
}

// closeWith closes c when the sockets are closed, until stop is called.
func (s *sockets) closeWith(c net.Conn) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-s.closed:
			c.Close()
		case <-done:
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// peekedConn gives back what was peeked at.
type peekedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// FinalAdvertiseAddr implements memberlist.Transport.
func (s *sockets) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return s.bind.Addr().AsSlice(), int(s.bind.Port()), nil
}

// WriteTo implements memberlist.Transport.
func (s *sockets) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	s.sent.Add(uint64(len(b)))
	_, err = s.udp.WriteTo(b, net.UDPAddrFromAddrPort(to))
	return time.Now(), err
}

// PacketCh implements memberlist.Transport.
func (s *sockets) PacketCh() <-chan *memberlist.Packet { return s.packets }

// StreamCh implements memberlist.Transport.
func (s *sockets) StreamCh() <-chan net.Conn { return s.streams }

// DialTimeout implements memberlist.Transport.
func (s *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.net.DialContext(ctx, "tcp", addr)
}

// Shutdown implements memberlist.Transport.
func (s *sockets) Shutdown() error {
	s.once.Do(func() {
		close(s.closed)
		s.tcp.Close()
		s.udp.Close()
	})
	s.wg.Wait()
	return nil
}

// hostPort formats the address of a member.
func hostPort(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}
