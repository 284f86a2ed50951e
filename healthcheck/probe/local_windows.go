package probe

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// classify says whether errno always has its cause on this machine, and whether it
// has if there is no route.
func classify(errno syscall.Errno, _ bool) (local, route bool) {
	switch errno {
	case windows.WSAEACCES, windows.WSAEMFILE, windows.WSAENOBUFS, windows.WSAEADDRNOTAVAIL,
		windows.WSAEADDRINUSE, windows.WSAEAFNOSUPPORT, windows.WSAEPROTONOSUPPORT,
		windows.WSAEINVAL, windows.WSAENETDOWN:
		return true, false
	case windows.WSAENETUNREACH, windows.WSAEHOSTUNREACH:
		return false, true
	}
	return false, false
}

// icmpErrno reports whether errno is what an ICMP error becomes. To a datagram socket
// "port unreachable" is a reset.
func icmpErrno(errno syscall.Errno) bool {
	switch errno {
	case windows.WSAECONNREFUSED, windows.WSAECONNRESET, windows.WSAEHOSTUNREACH, windows.WSAENETUNREACH:
		return true
	}
	return false
}
