//go:build unix

package probe

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func (s Socket) setDSCP(fd int, v6 bool) error {
	if s.DSCP == 0 {
		return nil
	}
	// RFC 2474: the code point is the upper six bits of the former TOS octet.
	level, option := unix.IPPROTO_IP, unix.IP_TOS
	if v6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	if err := unix.SetsockoptInt(fd, level, option, int(s.DSCP)<<2); err != nil {
		return fmt.Errorf("DSCP %d: %w", s.DSCP, err)
	}
	return nil
}
