package cluster_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// loopback opens sockets of this host alone.
type loopback struct{}

func local(address string) error {
	if ap, err := netip.ParseAddrPort(address); err != nil || !ap.Addr().IsLoopback() {
		return fmt.Errorf("not on the loopback interface: %s", address)
	}
	return nil
}

func (loopback) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if err := local(address); err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, network, address)
}

func (loopback) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if err := local(address); err != nil {
		return nil, err
	}
	return new(net.ListenConfig).ListenPacket(ctx, network, address)
}

func (loopback) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := local(address); err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}
