//go:build !linux

package main

import "net/netip"

// silence is for Linux.
type silence struct{}

func (*silence) set([]netip.Prefix) error { return nil }

// Close implements io.Closer.
func (*silence) Close() error { return nil }
