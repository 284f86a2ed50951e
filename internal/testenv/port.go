package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
)

// FreePort returns a loopback address whose port nobody has, over TCP and UDP and in both families, for a server of another process or one that
// comes back. It is below the ports that kernels give to clients, so that no connection takes it before the server does; and nobody else gets it
// here until the test ends, in this process or in those of other packages.
func FreePort(t testing.TB) netip.AddrPort {
	t.Helper()
	const first, count = 10_000, 20_000
	for range 1000 {
		port := uint16(first + rand.IntN(count))
		v4 := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
		if reserve(t, port) && free(v4) && (!hasIPv6() || free(netip.AddrPortFrom(netip.IPv6Loopback(), port))) {
			return v4
		}
	}
	t.Fatal("testenv: no free port")
	return netip.AddrPort{}
}

// reserve keeps other tests from getting the port, by a socket of a name that only one can have; the kernel lets go of it with the process.
func reserve(t testing.TB, port uint16) bool {
	if runtime.GOOS != "linux" {
		return true // there are no such names
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@lbprim-test-port-%d", port), Net: "unix"})
	if err != nil {
		return false
	}
	t.Cleanup(func() { l.Close() })
	return true
}

func free(a netip.AddrPort) bool {
	l, err := net.Listen("tcp", a.String())
	if err != nil {
		return false
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", a.String())
	if err != nil {
		return false
	}
	u.Close()
	return true
}

func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
}
