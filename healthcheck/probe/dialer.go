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
	DialContext(ctx context.Context, network, address string) (net.Conn, error) // is that of net.Dialer
}

// own returns the Socket d is, if it is one: the zero Socket for none.
func own(d Dialer) (Socket, bool) {
	switch d := d.(type) {
	case nil:
		return Socket{}, true
	case Socket:
		return d, true
	case *Socket:
		if d != nil {
			return *d, true
		}
		return Socket{}, true
	}
	return Socket{}, false
}

// dial opens a connection to target through d. Without a Dialer of the caller's no
// text of the address is made and parsed again. first: the client speaks first.
func dial(ctx context.Context, d Dialer, network string, target netip.AddrPort, first bool) (net.Conn, error) {
	s, ok := own(d)
	switch {
	case !ok:
		return d.DialContext(ctx, network, target.String())
	case network == "tcp":
		return s.connectTCP(ctx, target, first)
	}
	return s.dial(ctx, network, target)
}
