//go:build !linux

package probe

import (
	"context"
	"net"
	"net/netip"
)

func (s Socket) connectTCP(ctx context.Context, target netip.AddrPort, _ bool) (net.Conn, error) {
	return s.dial(ctx, "tcp", target)
}

// touchTCP connects and resets.
func (s Socket) touchTCP(ctx context.Context, target netip.AddrPort) error {
	c, err := s.dial(ctx, "tcp", target)
	if err == nil {
		reset(c)
	}
	return err
}
