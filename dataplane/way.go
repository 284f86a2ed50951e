package dataplane

import (
	"github.com/lbprim/lbprim/internal/wire"
)

// way is how packets of a session reach its node. A session keeps the one that it began with, whatever
// becomes of its service: a node that was reached through a tunnel need not understand anything else. Ways are
// never changed and never forgotten; there are as many as a Plane's configurations had different ones.
type way struct {
	wayKey
	wire wire.Tunnel
	// mss is the largest segment that fits, by the family of the outer and of the inner header, IPv4 first; 0 is no
	// limit.
	mss [2][2]uint16
}

// wayKey is what tells ways apart.
type wayKey struct {
	forward Forward
	tunnel  Tunnel
	mtu     int
}

// maxWays is what record.way can count.
const maxWays = 1 << 16

func newWay(k wayKey) *way {
	y := &way{wayKey: k}
	if k.forward == Tunnelled {
		y.wire = k.tunnel.wire()
	}
	if k.mtu == 0 {
		return y
	}
	for outer := range y.mss {
		room := k.mtu
		if k.forward == Tunnelled {
			room -= y.wire.Overhead(outer == 1)
		}
		y.mss[outer] = [2]uint16{uint16(room - 40), uint16(room - 60)}
	}
	return y
}

// limit returns the largest segment of a family to a node, or 0 for any.
func (y *way) limit(v6 bool, node *wire.End) uint16 {
	outer, inner := 0, 0
	if addrPort(node).Addr().Is6() {
		outer = 1
	}
	if v6 {
		inner = 1
	}
	return y.mss[outer][inner]
}

// wayOf returns the number of the way of a service, which it adds if there is none like it. ok is false if there are too many.
func (s *snapshot) wayOf(c *Service) (no uint16, ok bool) {
	k := wayKey{c.Forward, c.Tunnel, c.MTU}
	for i, y := range s.ways {
		if y.wayKey == k {
			return uint16(i), true
		}
	}
	if len(s.ways) == maxWays {
		return 0, false
	}
	s.ways = append(s.ways, newWay(k))
	if c.MTU != 0 && !c.Forward.direct() {
		s.narrow = min(s.narrow, c.MTU)
	}
	return uint16(len(s.ways) - 1), true
}
