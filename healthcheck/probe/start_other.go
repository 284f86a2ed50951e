//go:build !linux

package probe

import (
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// Start implements [healthcheck.Starter]; probes are started on Linux only.
func (p TCP) Start(*healthcheck.Scope, netip.AddrPort, time.Time, func(healthcheck.Result)) (stop func()) {
	return nil
}

// Start implements [healthcheck.Starter]; probes are started on Linux only.
func (p HTTP) Start(*healthcheck.Scope, netip.AddrPort, time.Time, func(healthcheck.Result)) (stop func()) {
	return nil
}

// Start implements [healthcheck.Starter]; probes are started on Linux only.
func (p TCPHalfOpen) Start(*healthcheck.Scope, netip.AddrPort, time.Time, func(healthcheck.Result)) (stop func()) {
	return nil
}
