//go:build unix

package probe

import "syscall"

// classify says whether errno always has its cause on this machine, and whether it
// has if there is no route.
func classify(errno syscall.Errno, v4 bool) (local, route bool) {
	switch errno {
	case syscall.EPERM, // a packet filter of this machine, or a missing capability
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.EAFNOSUPPORT,
		syscall.EPROTONOSUPPORT, syscall.EINVAL, syscall.ENODEV, syscall.ENETDOWN:
		return true, false
	case syscall.EACCES:
		// ICMPv6 "administratively prohibited" arrives as EACCES, too.
		return v4, !v4
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH:
		return false, true
	}
	return false, false
}

// icmpErrno reports whether errno is what an ICMP error becomes.
func icmpErrno(errno syscall.Errno) bool {
	switch errno {
	case syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPROTO,
		syscall.ENOPROTOOPT, syscall.EACCES, syscall.EHOSTDOWN:
		return true
	}
	return false
}
