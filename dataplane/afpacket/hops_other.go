//go:build !linux

package afpacket

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

type netlinkSocket struct{}

func (*netlinkSocket) rouse() {}

// NewHops returns an error that wraps errors.ErrUnsupported on this system.
func NewHops() (*Hops, error) {
	return nil, fmt.Errorf("afpacket: next hops need Linux, not %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Run returns errors.ErrUnsupported.
func (*Hops) Run(context.Context) error { return errors.ErrUnsupported }
