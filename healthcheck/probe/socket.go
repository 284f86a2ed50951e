package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// Socket is a [Dialer] that sets options of the sockets it opens. The zero Socket
// leaves everything to the system. It is a plain value and may be used by many
// probers at the same time.
type Socket struct {
	// Source is the address probes are sent from; the zero Addr: the system's
	// choice. It must be of the target's family.
	Source netip.Addr
	// Interface is the name of the network interface, or VRF, probes leave by;
	// empty: as the routing table says. Linux only.
	Interface string
	// Mark is the firewall mark of the packets, for policy routing; zero: none.
	// Linux only, and needs CAP_NET_ADMIN.
	Mark uint32
	// DSCP is the differentiated services code point of the packets, 0 to 63.
	DSCP uint8
}

// maxDSCP is the highest code point (RFC 2474 section 3: six bits).
const maxDSCP = 63

// Validate reports the faults of s.
func (s Socket) Validate() error {
	if s.DSCP > maxDSCP {
		return fmt.Errorf("probe: Socket.DSCP: got %d, want 0 to %d", s.DSCP, maxDSCP)
	}
	return nil
}

// DialContext connects to address, the text of a [netip.AddrPort]. The networks are
// "tcp" and "udp", with or without "4" or "6".
func (s Socket) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("probe: Socket: address: %w", err)
	}
	return s.dial(ctx, network, target)
}

func (s Socket) dial(ctx context.Context, network string, target netip.AddrPort) (net.Conn, error) {
	d, err := s.dialer(target.Addr())
	if err != nil {
		return nil, err
	}
	target = netip.AddrPortFrom(target.Addr().Unmap(), target.Port())
	var local netip.AddrPort
	if s.Source.IsValid() {
		local = netip.AddrPortFrom(s.Source.Unmap(), 0)
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
		c, err := d.DialTCP(ctx, network, local, target)
		if err != nil {
			return nil, err // not c: a nil *TCPConn would be a non-nil Conn
		}
		return c, nil
	case "udp", "udp4", "udp6":
		d.Control = s.controlUDP
		return dialUDP(ctx, d, network, local, target)
	}
	return nil, fmt.Errorf("probe: Socket: network: got %q, want tcp or udp", network)
}

// dialUDP connects a socket that is not its own target. To a local address and a port
// that nobody has, the system may give the socket that very port, and the probe would
// be answered by itself.
func dialUDP(ctx context.Context, d *net.Dialer, network string, local, target netip.AddrPort) (net.Conn, error) {
	var own net.Conn
	for {
		c, err := d.DialUDP(ctx, network, local, target)
		if own != nil {
			_ = own.Close() // held until here, so that its port is not given again
		}
		if err != nil {
			return nil, err
		}
		if c.LocalAddr().String() != c.RemoteAddr().String() {
			return c, nil
		}
		own = c
	}
}

// listenUDP opens a socket that takes datagrams from any address, as replies may
// come from another port than they were asked from.
func (s Socket) listenUDP(ctx context.Context, target netip.AddrPort) (*net.UDPConn, error) {
	if err := s.check(target.Addr()); err != nil {
		return nil, err
	}
	l := net.ListenConfig{Control: s.controlUDP}
	network, local := "udp4", netip.IPv4Unspecified()
	if target.Addr().Unmap().Is6() {
		network, local = "udp6", netip.IPv6Unspecified()
	}
	if s.Source.IsValid() {
		local = s.Source.Unmap()
	}
	var own *net.UDPConn
	for {
		c, err := l.ListenPacket(ctx, network, netip.AddrPortFrom(local, 0).String())
		if own != nil {
			_ = own.Close()
		}
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UDPConn)
		if !ok {
			_ = c.Close()
			return nil, errors.ErrUnsupported
		}
		at, ok := u.LocalAddr().(*net.UDPAddr)
		if !ok || at.Port != int(target.Port()) { // as in dialUDP
			return u, nil
		}
		own = u
	}
}

// check says why there can be no socket for a target.
func (s Socket) check(target netip.Addr) error {
	if err := s.Validate(); err != nil {
		return localError{err}
	}
	if !target.IsValid() {
		return localError{errors.New("the target has no address")}
	}
	if s.Source.IsValid() && s.Source.Unmap().Is4() != target.Unmap().Is4() {
		return localError{fmt.Errorf("source %v and target %v are of different families", s.Source, target)}
	}
	return nil
}

// dialer returns the dialer for targets of one address family, or says why there can
// be none.
func (s Socket) dialer(target netip.Addr) (*net.Dialer, error) {
	if err := s.check(target); err != nil {
		return nil, err
	}
	// Keep-alives and the fallback to the other family are of no use to a probe.
	d := &net.Dialer{KeepAlive: -1, FallbackDelay: -1}
	if s.Interface != "" || s.Mark != 0 || s.DSCP != 0 {
		d.Control = s.control
	}
	return d, nil
}

// control sets the options of s on a socket that is not yet connected.
func (s Socket) control(network, _ string, c syscall.RawConn) error {
	if s.Interface == "" && s.Mark == 0 && s.DSCP == 0 {
		return nil
	}
	var err error
	v6 := len(network) > 0 && network[len(network)-1] == '6'
	if e := c.Control(func(fd uintptr) { err = s.setOptions(fd, v6) }); e != nil {
		return e
	}
	if err != nil {
		return localError{err}
	}
	return nil
}

// controlUDP has ICMP errors reported, too.
func (s Socket) controlUDP(network, address string, c syscall.RawConn) error {
	if err := s.control(network, address, c); err != nil {
		return err
	}
	return recvErr(network, c)
}
