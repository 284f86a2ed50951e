//go:build !unix

package probe

import (
	"errors"
	"fmt"
	"syscall"
)

func (s Socket) setOptions(uintptr, bool) error {
	return fmt.Errorf("interface, mark and DSCP of a socket: %w", errors.ErrUnsupported)
}

func recvErr(string, syscall.RawConn) error { return nil }
