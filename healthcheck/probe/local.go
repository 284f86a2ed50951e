package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// localError marks an error whose cause is this machine or its configuration.
type localError struct{ err error }

func (e localError) Error() string { return e.err.Error() }
func (e localError) Unwrap() error { return e.err }

// isLocal reports whether err, which a socket operation towards target returned, has
// its cause on this machine. sent: a packet has left, so that there is a route.
func isLocal(ctx context.Context, d Dialer, target netip.AddrPort, sent bool, err error) bool {
	if _, ok := errors.AsType[localError](err); ok {
		return true
	}
	if addr, ok := errors.AsType[*net.AddrError](err); ok {
		return addr != nil
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return errors.Is(err, os.ErrPermission)
	}
	switch local, route := classify(errno, target.Addr().Is4() || target.Addr().Is4In6()); {
	case local:
		return true
	case route:
		return !sent && !routed(ctx, d, target)
	}
	return false
}

// routed reports whether this machine has a route to target. "Network unreachable"
// is what connect returns without a route, and what a distant router's ICMP message
// is turned into; connecting a UDP socket looks up the route and sends nothing, so
// it tells the two apart.
func routed(ctx context.Context, d Dialer, target netip.AddrPort) bool {
	if t, ok := d.(TLSDialer); ok {
		d = t.Dialer
	}
	c, err := dial(context.WithoutCancel(ctx), d, "udp", target, true)
	if err == nil {
		_ = c.Close()
		return true
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return true // a Dialer that knows no UDP
	}
	_, route := classify(errno, target.Addr().Is4() || target.Addr().Is4In6())
	return !route
}

// cause strips the layers package net puts around what a socket call returned: the
// step and the target are named elsewhere.
func cause(err error) error {
	for {
		switch e := err.(type) { //nolint:errorlint // only the outermost layers
		case *net.OpError:
			err = e.Err
		case *os.SyscallError:
			err = e.Err
		default:
			return err
		}
	}
}
