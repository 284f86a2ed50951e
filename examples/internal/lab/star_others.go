//go:build !linux

package lab

import (
	"errors"
	"fmt"
)

// Star returns an error that wraps errors.ErrUnsupported.
func Star(int) ([]StarHost, func() error, error) {
	return nil, nil, fmt.Errorf("network namespaces need Linux: %w", errors.ErrUnsupported)
}
