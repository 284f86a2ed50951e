//go:build unix && !linux

package probe

import (
	"errors"
	"fmt"
	"syscall"
)

func (s Socket) setOptions(fd uintptr, v6 bool) error {
	if s.Interface != "" || s.Mark != 0 {
		return fmt.Errorf("interface and mark of a socket: %w", errors.ErrUnsupported)
	}
	return s.setDSCP(int(fd), v6)
}

func recvErr(string, syscall.RawConn) error { return nil }
