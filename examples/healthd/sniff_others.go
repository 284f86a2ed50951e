//go:build !linux

package main

import (
	"errors"
	"net/netip"
)

// sniff needs Linux's packet sockets.
func (t *tracer) sniff(netip.AddrPort) (stop func(), err error) {
	return nil, errors.New("packets are not shown: that needs Linux")
}
