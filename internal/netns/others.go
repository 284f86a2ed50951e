//go:build !linux

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

var errOther = fmt.Errorf("netns: network namespaces need Linux: %w", errors.ErrUnsupported)

// Namespace cannot be had on this system.
type Namespace struct{}

// End is one end of a virtual Ethernet cable.
type End struct {
	NS    *Namespace
	Name  string
	Addrs []netip.Prefix
	MTU   int

	NoOffload bool
}

// New returns an error that wraps errors.ErrUnsupported.
func New() (*Namespace, error) { return nil, errOther }

// Join returns an error that wraps errors.ErrUnsupported.
func Join(_, _ End) error { return errOther }

// Inside reports false.
func Inside() bool { return false }

// RunAsRoot returns an error that wraps errors.ErrUnsupported.
func RunAsRoot() (status int, err error) { return 0, errOther }

// Do returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) Do(func() error) error { return errOther }

// Close does nothing.
func (n *Namespace) Close() error { return nil }

// Sysctl returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) Sysctl(_, _ string) error { return errOther }

// DefaultVia returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) DefaultVia(...netip.Addr) error { return errOther }

// Router returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) Router() error { return errOther }

// DialContext returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errOther
}

// DialWith returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) DialWith(context.Context, *net.Dialer, string, string) (net.Conn, error) {
	return nil, errOther
}

// Listen returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) Listen(context.Context, string, string) (net.Listener, error) {
	return nil, errOther
}

// ListenPacket returns an error that wraps errors.ErrUnsupported.
func (n *Namespace) ListenPacket(context.Context, string, string) (net.PacketConn, error) {
	return nil, errOther
}
