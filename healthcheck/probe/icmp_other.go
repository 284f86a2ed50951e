//go:build !linux

package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/net/icmp"
)

// openEcho opens a datagram socket where the system has such (Darwin), else a raw one.
func (s Socket) openEcho(ctx context.Context, target netip.Addr) (echoConn, string, error) {
	if s == (Socket{Source: s.Source}) {
		network, local := "udp4", "0.0.0.0"
		if target.Is6() {
			network, local = "udp6", "::"
		}
		if s.Source.IsValid() {
			local = s.Source.Unmap().String()
		}
		if c, err := icmp.ListenPacket(network, local); err == nil {
			return &echoPacket{c, target}, "datagram socket", nil
		}
	}
	network := "ip4:icmp"
	if target.Is6() {
		network = "ip6:ipv6-icmp"
	}
	d := net.Dialer{}
	if s.Source.IsValid() {
		d.LocalAddr = &net.IPAddr{IP: s.Source.Unmap().AsSlice()}
	}
	d.Control = func(_, address string, c syscall.RawConn) error {
		if target.Is6() {
			return s.control("udp6", address, c)
		}
		return s.control("udp4", address, c)
	}
	c, err := d.DialContext(ctx, network, target.String())
	if errors.Is(err, os.ErrPermission) {
		err = localError{err}
	}
	if err != nil {
		return nil, "", err
	}
	ip, ok := c.(*net.IPConn)
	if !ok {
		_ = c.Close()
		return nil, "", localError{errors.ErrUnsupported}
	}
	return &echoIP{ip}, "raw socket", nil
}

// echoIP is a connected raw socket.
type echoIP struct{ *net.IPConn }

func (c *echoIP) kernelID() bool { return false }

func (c *echoIP) send(b []byte) error {
	_, err := c.Write(b)
	return err
}

// read leaves out the IPv4 header, which Read would not.
func (c *echoIP) read(b []byte) (int, error) {
	n, _, err := c.ReadFromIP(b)
	return n, err
}

// echoPacket is a datagram socket that is not connected.
type echoPacket struct {
	*icmp.PacketConn
	target netip.Addr
}

func (c *echoPacket) kernelID() bool { return false }

func (c *echoPacket) send(b []byte) error {
	_, err := c.WriteTo(b, &net.UDPAddr{IP: c.target.AsSlice(), Zone: c.target.Zone()})
	return err
}

func (c *echoPacket) read(b []byte) (int, error) {
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return 0, err
		}
		if u, ok := from.(*net.UDPAddr); ok {
			if a, ok := netip.AddrFromSlice(u.IP); ok && a.Unmap() == c.target.WithZone("") {
				return n, nil
			}
		}
	}
}
