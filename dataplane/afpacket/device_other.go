//go:build !linux

package afpacket

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// Device is a batch of packet sockets. It exists on Linux only.
type Device struct{}

// Open returns the faults of the Config, or an error that wraps errors.ErrUnsupported on this system.
func Open(cfg *Config) (*Device, error) {
	if _, err := cfg.complete(1); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("afpacket: packet sockets need Linux, not %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// OpenQueues returns the faults of the Config, or an error that wraps errors.ErrUnsupported on this system.
func OpenQueues(cfg *Config, n int) ([]*Device, error) {
	if _, err := cfg.complete(n); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("afpacket: packet sockets need Linux, not %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Preflight returns an error that wraps errors.ErrUnsupported on this system.
func Preflight([]string, []netip.Addr) error {
	return fmt.Errorf("afpacket: packet sockets need Linux, not %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Read returns errors.ErrUnsupported.
func (*Device) Read([][]byte, []int, int) (int, error) { return 0, errors.ErrUnsupported }

// Write returns errors.ErrUnsupported.
func (*Device) Write([][]byte, int) (int, error) { return 0, errors.ErrUnsupported }

// BatchSize returns 0.
func (*Device) BatchSize() int { return 0 }

// Close does nothing.
func (*Device) Close() error { return nil }

// VirtioHeader returns 0.
func (*Device) VirtioHeader() int { return 0 }

// Ethernet returns true.
func (*Device) Ethernet() bool { return true }

// Ports returns true.
func (*Device) Ports() bool { return true }

// SetVIPs returns errors.ErrUnsupported.
func (*Device) SetVIPs(...netip.Addr) error { return errors.ErrUnsupported }

// Interfaces returns none.
func (*Device) Interfaces() []Interface { return nil }

// Stats returns zeros.
func (*Device) Stats() Stats { return Stats{} }
