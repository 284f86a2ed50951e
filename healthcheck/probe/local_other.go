//go:build !unix && !windows

package probe

import "syscall"

// classify says whether errno always has its cause on this machine, and whether it
// has if there is no route. Nothing is known of this system's numbers.
func classify(syscall.Errno, bool) (local, route bool) { return false, false }

// icmpErrno reports whether errno is what an ICMP error becomes.
func icmpErrno(syscall.Errno) bool { return false }
