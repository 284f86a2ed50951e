package testenv

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// FreePort returns a loopback address whose port nobody has, over TCP and UDP and in both families, for a server of another process. It is
// below the ports that kernels give to clients, so that no connection takes it before the server does.
func FreePort(t testing.TB) netip.AddrPort {
	t.Helper()
	const first, count = 10_000, 20_000
	for range 1000 {
		port := uint16(first + rand.IntN(count))
		v4 := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
		if free(v4) && (!hasIPv6() || free(netip.AddrPortFrom(netip.IPv6Loopback(), port))) {
			return v4
		}
	}
	t.Fatal("testenv: no free port")
	return netip.AddrPort{}
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
