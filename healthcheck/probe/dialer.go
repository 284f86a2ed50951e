package probe

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// DefaultTimeout bounds a probe whose context has no deadline.
const DefaultTimeout = 5 * time.Second

// A Dialer opens connections. [Socket] and *[net.Dialer] are Dialers. It is called
// with the networks "tcp" and "udp" and the text of a [netip.AddrPort], and is used
// by many probes at the same time.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// dial opens a connection to target through d. Without a Dialer of the caller's no
// text of the address is made and parsed again.
func dial(ctx context.Context, d Dialer, network string, target netip.AddrPort) (net.Conn, error) {
	switch d := d.(type) {
	case nil:
		return Socket{}.dial(ctx, network, target)
	case Socket:
		return d.dial(ctx, network, target)
	case *Socket:
		if d != nil {
			return d.dial(ctx, network, target)
		}
		return Socket{}.dial(ctx, network, target)
	}
	return d.DialContext(ctx, network, target.String())
}
