package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/lbprim/lbprim/dataplane"
)

// Host is a machine of the network. Its methods are safe for concurrent use.
type Host interface {
	// Dial opens a connection ("tcp" or "udp") from one of the host's addresses. A from that is
	// not valid leaves the choice to the host.
	Dial(ctx context.Context, network string, from netip.Addr, to netip.AddrPort) (net.Conn, error)
	// Listen opens a listening TCP socket.
	Listen(ctx context.Context, at netip.AddrPort) (net.Listener, error)
	// ListenPacket opens a UDP socket.
	ListenPacket(ctx context.Context, at netip.AddrPort) (net.PacketConn, error)
}

// Config says what a Lab consists of.
type Config struct {
	Clients int          // addresses of the client, in each family; at most 200
	Servers int          // server hosts; at most 90
	VIPs    []netip.Addr // routed to the device
	Seed    uint64       // of what Memory draws
}

// Lab is a running network. Close takes it down.
type Lab struct {
	Client   Host
	Balancer Host // for health checks: past the device
	Servers  []Host
	Device   dataplane.Device

	// Corrupt counts packets that arrived damaged at a host: with Memory, where every checksum is verified; with
	// Kernel the damaged packet is lost, and found by whoever waits for it.
	Corrupt func() uint64

	close func() error
}

// Close takes the network down.
func (l *Lab) Close() error { return l.close() }

// ClientAddr is address i of the client.
func ClientAddr(v6 bool, i int) netip.Addr { return addr(v6, 0, byte(10+i)) }

// ServerAddr is the address of server i, counted from 0.
func ServerAddr(v6 bool, i int) netip.Addr { return addr(v6, byte(1+i), 2) }

func balancerAddr(v6 bool, cable byte) netip.Addr { return addr(v6, cable, 1) }

// addr is 10.90.cable.host or fd90:0:0:cable::host.
func addr(v6 bool, cable, host byte) netip.Addr {
	if !v6 {
		return netip.AddrFrom4([4]byte{10, 90, cable, host})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x90, 7: cable, 15: host})
}

func (c Config) validate() error {
	var errs []error
	if c.Clients < 1 || c.Clients > 200 {
		errs = append(errs, fmt.Errorf("lab: Clients %d: must be 1 to 200", c.Clients))
	}
	if c.Servers < 1 || c.Servers > 90 {
		errs = append(errs, fmt.Errorf("lab: Servers %d: must be 1 to 90", c.Servers))
	}
	for i, v := range c.VIPs {
		if !v.IsValid() {
			errs = append(errs, fmt.Errorf("lab: VIPs[%d]: the zero Addr is no address", i))
		}
	}
	return errors.Join(errs...)
}

// Dialer dials from host h, in the form health checks and http.Transport want.
type Dialer struct{ Host Host }

// DialContext dials an address and port; names are not resolved.
func (d Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return d.Host.Dial(ctx, network, netip.Addr{}, to)
}
