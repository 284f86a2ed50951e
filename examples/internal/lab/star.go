package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Sockets opens sockets of a host.
type Sockets interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// A StarHost is a host of Star or of Loopback.
type StarHost struct {
	Sockets
	Addr netip.Addr
}

func name(i int) string { return fmt.Sprintf("h%d", i) }

// Loopback makes n hosts of the loopback addresses 127.90.0.2, 127.90.1.2 and so on of this machine.
func Loopback(n int) (hosts []StarHost) {
	for i := range n {
		hosts = append(hosts, StarHost{Sockets: own{}, Addr: netip.AddrFrom4([4]byte{127, 90, byte(i), 2})})
	}
	return hosts
}

// own opens sockets of the program's own host.
type own struct{}

func (own) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, network, address)
}

func (own) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(ctx, network, address)
}

func (own) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, address)
}
