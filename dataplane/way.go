package dataplane

import (
	"math"

	"github.com/lbprim/lbprim/internal/wire"
)

// way is how packets of a session reach its node. A session keeps the one that it began with, whatever
// becomes of its service: a node that was reached through a tunnel need not understand anything else. Ways are
// never changed, and forgotten once neither a service nor a session has them, see numbers.go.
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
		if y != nil && y.wayKey == k {
			return uint16(i), true
		}
	}
	if no, ok = take(&s.spare.ways); ok {
		s.ways[no] = newWay(k)
	} else if len(s.ways) == maxWays {
		return 0, false
	} else {
		no = uint16(len(s.ways))
		s.ways = append(s.ways, newWay(k))
	}
	if c.MTU != 0 && !c.Forward.direct() {
		s.narrow = min(s.narrow, c.MTU)
	}
	return no, true
}

// setNarrow finds the least MTU of ways of translated packets.
func (s *snapshot) setNarrow() {
	s.narrow = math.MaxInt
	for _, y := range s.ways {
		if y != nil && y.mtu != 0 && !y.forward.direct() {
			s.narrow = min(s.narrow, y.mtu)
		}
	}
}

// way returns a way of the batch's configuration, or of the newest one, if another worker has begun the session under that.
func (w *Worker) way(no uint16) *way {
	if int(no) >= len(w.snap.ways) || w.snap.ways[no] == nil {
		w.renew()
	}
	return w.snap.ways[no]
}
