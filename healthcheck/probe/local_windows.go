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
