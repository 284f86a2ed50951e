package afpacket

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// kernelState is what the kernel has told, by requests and by notifications alike.
type kernelState struct {
	links      map[uint32]link
	neighbours map[neighbour][6]byte
	routes     map[route]struct{}
	generation uint64
	stale      bool // routes may have vanished unsaid
}

// reread is how often everything is asked for anew, whatever was announced.
const reread = time.Minute

// NewHops reads the tables of the network namespace of the calling thread.
func NewHops() (*Hops, error) {
	h := &Hops{missing: make(chan neighbour, 256)}
	if err := h.sock.open(); err != nil {
		return nil, fmt.Errorf("afpacket: next hops: %w", err)
	}
	s := &kernelState{}
	if err := h.refill(s); err != nil {
		h.sock.close()
		return nil, fmt.Errorf("afpacket: next hops: %w", err)
	}
	h.sock.state = s
	return h, nil
}

// refill asks for everything anew, as after a loss of notifications.
func (h *Hops) refill(s *kernelState) error {
	s.links, s.neighbours, s.routes = map[uint32]link{}, map[neighbour][6]byte{}, map[route]struct{}{}
	for _, typ := range []uint16{unix.RTM_GETLINK, unix.RTM_GETROUTE, unix.RTM_GETNEIGH} {
		if err := h.sock.dump(typ, s.apply); err != nil {
			return err
		}
	}
	h.publish(s)
	s.stale = false
	return nil
}

// Run follows the kernel's changes until ctx is done, and has it resolve missing neighbours. It closes h.
func (h *Hops) Run(ctx context.Context) error {
	defer h.sock.close()
	s := h.sock.state
	asked := map[neighbour]time.Time{}
	last := time.Now()
	for ctx.Err() == nil {
		err := h.sock.wait(20*time.Millisecond, s.apply)
		switch {
		case errors.Is(err, unix.ENOBUFS), err == nil && (s.stale || time.Since(last) > reread):
			last = time.Now()
			if err := h.refill(s); err != nil {
				return fmt.Errorf("afpacket: next hops: %w", err)
			}
		case err != nil:
			return fmt.Errorf("afpacket: next hops: %w", err)
		case h.sock.changed:
			h.sock.changed = false
			h.publish(s)
		}
		h.ask(asked)
	}
	return ctx.Err()
}

// ask has the kernel look for the neighbours that packets wanted, each at most once a second.
func (h *Hops) ask(asked map[neighbour]time.Time) {
	now := time.Now()
	if len(asked) > 4096 {
		for n, at := range asked {
			if now.Sub(at) > time.Second {
				delete(asked, n)
			}
		}
	}
	for {
		select {
		case n := <-h.missing:
			if at, ok := asked[n]; ok && now.Sub(at) < time.Second || len(asked) > 8192 {
				continue
			}
			asked[n] = now
			h.sock.use(n)
		default:
			return
		}
	}
}

// publish swaps in a table made of s.
func (h *Hops) publish(s *kernelState) {
	s.generation++
	t := &hopTable{generation: s.generation, links: make(map[uint32]link, len(s.links)), neighbours: make(map[neighbour][6]byte, len(s.neighbours))}
	for i, l := range s.links {
		t.links[i] = l
	}
	for n, mac := range s.neighbours {
		t.neighbours[n] = mac
	}
	t.v4, t.v6 = compile(s, true), compile(s, false)
	h.table.Store(t)
}

func compile(s *kernelState, v4 bool) prefixes {
	byBits := map[int]map[netip.Addr]route{}
	for r := range s.routes {
		if r.dst.Addr().Is4() != v4 || !s.links[r.link].up {
			continue
		}
		m := byBits[r.dst.Bits()]
		if m == nil {
			m = map[netip.Addr]route{}
			byBits[r.dst.Bits()] = m
		}
		if old, ok := m[r.dst.Addr()]; !ok || cmp.Or(cmp.Compare(r.metric, old.metric), cmp.Compare(r.link, old.link), r.via.Compare(old.via)) < 0 {
			m[r.dst.Addr()] = r
		}
	}
	var ps prefixes
	for bits, m := range byBits {
		ps = append(ps, samePrefix{bits, m})
	}
	slices.SortFunc(ps, func(a, b samePrefix) int { return b.bits - a.bits })
	return ps
}

// apply takes one rtnetlink(7) message into the state and reports whether it said anything new.
func (s *kernelState) apply(typ uint16, body []byte) bool {
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return s.applyLink(typ == unix.RTM_NEWLINK, body)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return s.applyNeighbour(typ == unix.RTM_NEWNEIGH, body)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return s.applyRoute(typ == unix.RTM_NEWROUTE, body)
	}
	return false
}

func (s *kernelState) applyLink(added bool, b []byte) bool {
	// struct ifinfomsg: family(1) pad(1) type(2) index(4) flags(4) change(4)
	if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_UNSPEC {
		return false
	}
	index := binary.NativeEndian.Uint32(b[4:])
	if !added {
		delete(s.links, index)
		s.stale = true
		return true
	}
	l := link{up: binary.NativeEndian.Uint32(b[8:])&unix.IFF_UP != 0, ether: binary.NativeEndian.Uint16(b[2:]) == unix.ARPHRD_ETHER}
	attributes(b[unix.SizeofIfInfomsg:], func(typ uint16, v []byte) {
		switch {
		case typ == unix.IFLA_ADDRESS && len(v) == 6:
			l.mac = [6]byte(v)
		case typ == unix.IFLA_MTU && len(v) == 4:
			l.mtu = int(binary.NativeEndian.Uint32(v))
		}
	})
	old, had := s.links[index]
	s.links[index] = l
	if had && old.up != l.up {
		s.stale = true // the kernel takes a downed link's IPv4 routes away without a word
	}
	return old != l
}

func (s *kernelState) applyNeighbour(added bool, b []byte) bool {
	// struct ndmsg: family(1) pad(3) ifindex(4) state(2) flags(1) type(1)
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 {
		return false
	}
	n := neighbour{link: binary.NativeEndian.Uint32(b[4:])}
	state := binary.NativeEndian.Uint16(b[8:])
	var mac [6]byte
	var known bool
	attributes(b[unix.SizeofNdMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.NDA_DST:
			n.addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			if known = len(v) == 6; known {
				mac = [6]byte(v)
			}
		}
	})
	const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
	old, had := s.neighbours[n]
	if !added || !known || state&usable == 0 {
		delete(s.neighbours, n)
		return had
	}
	s.neighbours[n] = mac
	return !had || old != mac
}

func (s *kernelState) applyRoute(added bool, b []byte) bool {
	// struct rtmsg: family dst_len src_len tos table protocol scope type (1 each) flags(4)
	if len(b) < unix.SizeofRtMsg || b[7] != unix.RTN_UNICAST {
		return false
	}
	r := route{}
	table := uint32(b[4])
	dst := netip.IPv4Unspecified()
	switch b[0] {
	case unix.AF_INET:
	case unix.AF_INET6:
		dst = netip.IPv6Unspecified()
	default:
		return false
	}
	var multipath []byte
	attributes(b[unix.SizeofRtMsg:], func(typ uint16, v []byte) {
		switch {
		case typ == unix.RTA_TABLE && len(v) == 4:
			table = binary.NativeEndian.Uint32(v)
		case typ == unix.RTA_DST:
			if a, ok := netip.AddrFromSlice(v); ok {
				dst = a
			}
		case typ == unix.RTA_GATEWAY:
			r.via, _ = netip.AddrFromSlice(v)
		case typ == unix.RTA_VIA && len(v) > 2: // a gateway of the other family: family(2) address
			r.via, _ = netip.AddrFromSlice(v[2:])
		case typ == unix.RTA_OIF && len(v) == 4:
			r.link = binary.NativeEndian.Uint32(v)
		case typ == unix.RTA_PRIORITY && len(v) == 4:
			r.metric = binary.NativeEndian.Uint32(v)
		case typ == unix.RTA_MULTIPATH:
			multipath = v
		}
	})
	if table != unix.RT_TABLE_MAIN {
		return false
	}
	var err error
	if r.dst, err = dst.Prefix(int(b[1])); err != nil {
		return false
	}
	set := func(r route) {
		if added {
			s.routes[r] = struct{}{}
		} else {
			delete(s.routes, r)
		}
	}
	if multipath == nil {
		set(r)
		return true
	}
	// struct rtnexthop: len(2) flags(1) hops(1) ifindex(4) attributes…
	for len(multipath) >= unix.SizeofRtNexthop {
		n := int(binary.NativeEndian.Uint16(multipath))
		if n < unix.SizeofRtNexthop || n > len(multipath) {
			break
		}
		hop := r
		hop.link = binary.NativeEndian.Uint32(multipath[4:])
		attributes(multipath[unix.SizeofRtNexthop:n], func(typ uint16, v []byte) {
			if typ == unix.RTA_GATEWAY {
				hop.via, _ = netip.AddrFromSlice(v)
			}
		})
		set(hop)
		multipath = multipath[min(len(multipath), (n+3)&^3):]
	}
	return true
}

// attributes calls f for each attribute of b: length(2) type(2) value, padded to 4.
func attributes(b []byte, f func(typ uint16, value []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&nlaType, b[unix.SizeofRtAttr:n])
		b = b[min(len(b), (n+3)&^3):]
	}
}

// nlaType is NLA_TYPE_MASK: without the flags for nesting and byte order.
const nlaType = 0x3fff
