//go:build !linux

package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Device is one queue of an interface; on this system there is none.
type Device struct{}

var errOther = fmt.Errorf("tun: this device needs Linux: %w", errors.ErrUnsupported)

// Open returns an error that wraps errors.ErrUnsupported.
func Open(cfg *Config) (*Device, error) {
	if _, err := cfg.complete(1); err != nil {
		return nil, err
	}
	return nil, errOther
}

// OpenQueues returns an error that wraps errors.ErrUnsupported.
func OpenQueues(cfg *Config, n int) ([]*Device, error) {
	if _, err := cfg.complete(n); err != nil {
		return nil, err
	}
	return nil, errOther
}

// Preflight returns an error that wraps errors.ErrUnsupported.
func Preflight(cfg *Config) error {
	if _, err := cfg.complete(1); err != nil {
		return err
	}
	return errOther
}

// Name returns nothing.
func (d *Device) Name() string { return "" }

// SetRoutes returns an error that wraps errors.ErrUnsupported.
func (d *Device) SetRoutes(...netip.Prefix) error { return errOther }

// Index returns 0.
func (d *Device) Index() int { return 0 }

// MTU returns 0.
func (d *Device) MTU() int { return 0 }

// Offload returns none.
func (d *Device) Offload() Offload { return Offload{} }

// VirtioHeader returns 0.
func (d *Device) VirtioHeader() int { return 0 }

// BatchSize returns 1.
func (d *Device) BatchSize() int { return 1 }

// Stats returns zeros.
func (d *Device) Stats() Stats { return Stats{} }

// Read returns an error that wraps os.ErrClosed.
func (d *Device) Read([][]byte, []int, int) (int, error) { return 0, os.ErrClosed }

// Write returns an error that wraps os.ErrClosed.
func (d *Device) Write([][]byte, int) (int, error) { return 0, os.ErrClosed }

// Close does nothing.
func (d *Device) Close() error { return nil }
