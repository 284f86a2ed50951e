//go:build !linux

package lab

import (
	"errors"
	"fmt"
)

var errOther = fmt.Errorf("lab: network namespaces need Linux: %w", errors.ErrUnsupported)

// NeedsUser reports false.
func NeedsUser() bool { return false }

// AsUser returns an error that wraps errors.ErrUnsupported.
func AsUser() (status int, err error) { return 0, errOther }

// DeviceError returns an error that wraps errors.ErrUnsupported.
func DeviceError() error { return errOther }

// Kernel returns an error that wraps errors.ErrUnsupported.
func Kernel(Config) (*Lab, error) { return nil, errOther }
