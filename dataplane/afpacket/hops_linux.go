package afpacket

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// kernelState is what the kernel has told, by requests and by notifications alike.
type kernelState struct {
	links      map[uint32]link
	neighbours map[neighbour]known
	routes     map[route]struct{}
	generation uint64
	stale      bool      // routes may have vanished unsaid
	patience   time.Time // until then, what is stale stays
	rerouted   bool      // routes or links have changed since they were published
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
	var err error
	for range 3 {
		s.links, s.neighbours, s.routes = map[uint32]link{}, map[neighbour]known{}, map[route]struct{}{}
		s.stale, s.rerouted = false, true
		for _, typ := range []uint16{unix.RTM_GETLINK, unix.RTM_GETROUTE, unix.RTM_GETNEIGH} {
			if err = h.sock.dump(typ, s.apply); err != nil {
				break
			}
		}
		if err == nil {
			h.publish(s)
			return nil
		}
		if !errors.Is(err, errLost) {
			return err
		}
	}
	// Tables that change faster than they can be read: what was read is nearly right, and soon read again.
	h.publish(s)
	s.stale, s.patience = true, time.Now().Add(time.Second)
	return nil
}

// Run follows the kernel's changes until ctx is done, and has it resolve missing neighbours. It closes h.
func (h *Hops) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, h.sock.rouse)()
	defer h.sock.close()
	s := h.sock.state
	asked := map[neighbour]time.Time{}
	last := time.Now()
	for ctx.Err() == nil {
		pause := reread - time.Since(last)
		if s.stale {
			pause = time.Until(s.patience)
		}
		err := h.sock.wait(pause, s.apply)
		if errors.Is(err, errLost) {
			s.stale = true
		} else if err != nil {
			return fmt.Errorf("afpacket: next hops: %w", err)
		}
		now := time.Now()
		switch {
		case s.stale && !now.Before(s.patience), now.Sub(last) >= reread:
			last = now
			if err := h.refill(s); err != nil {
				return fmt.Errorf("afpacket: next hops: %w", err)
			}
			h.sock.changed = false
		case h.sock.changed:
			h.sock.changed = false
			h.publish(s)
		}
		h.use(asked)
	}
	return ctx.Err()
}

// use has the kernel look for the neighbours that packets wanted, each at most once a second.
func (h *Hops) use(asked map[neighbour]time.Time) {
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

// publish swaps in a table made of s. Routes may be many and neighbours change often, so the former are compiled only where they have
// changed.
func (h *Hops) publish(s *kernelState) {
	s.generation++
	t := &hopTable{generation: s.generation, links: maps.Clone(s.links), neighbours: maps.Clone(s.neighbours)}
	if old := h.table.Load(); s.rerouted || old == nil {
		t.v4, t.v6 = compile(s, true), compile(s, false)
		s.rerouted = false
	} else {
		t.v4, t.v6 = old.v4, old.v6
	}
	h.table.Store(t)
}

func compile(s *kernelState, v4 bool) prefixes {
	byBits := map[int]map[netip.Addr]route{}
	for r := range s.routes {
		if r.dst.Addr().Is4() != v4 || !r.reject && !s.links[r.link].up {
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
func (s *kernelState) apply(typ, flags uint16, body []byte) bool {
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		changed := s.applyLink(typ == unix.RTM_NEWLINK, body)
		s.rerouted = s.rerouted || changed
		return changed
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return s.applyNeighbour(typ == unix.RTM_NEWNEIGH, body)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		changed := s.applyRoute(typ == unix.RTM_NEWROUTE, flags&unix.NLM_F_REPLACE != 0, body)
		s.rerouted = s.rerouted || changed
		return changed
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
	var has bool
	attributes(b[unix.SizeofNdMsg:], func(typ uint16, v []byte) {
		switch typ {
		case unix.NDA_DST:
			n.addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			if has = len(v) == 6; has {
				mac = [6]byte(v)
			}
		}
	})
	const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
	old, had := s.neighbours[n]
	if !added || !has || state&usable == 0 {
		delete(s.neighbours, n)
		return had
	}
	k := known{mac: mac, stale: state&unix.NUD_STALE != 0}
	if had && old.mac == k.mac && old.stale == k.stale {
		return false
	}
	if k.stale {
		k.asked = new(atomic.Bool)
	}
	s.neighbours[n] = k
	return true
}

func (s *kernelState) applyRoute(added, replaces bool, b []byte) bool {
	// struct rtmsg: family dst_len src_len tos table protocol scope type (1 each) flags(4)
	if len(b) < unix.SizeofRtMsg || b[3] != 0 || binary.NativeEndian.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return false // for one kind of service only, or learned for one destination
	}
	r := route{}
	switch b[7] {
	case unix.RTN_UNICAST:
	case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT:
		r.reject = true
	default:
		return false
	}
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
	if r.reject {
		r.link, r.via = 0, netip.Addr{}
	}
	if added && replaces { // what it replaces goes without a word
		for old := range s.routes {
			if old.dst == r.dst && old.metric == r.metric {
				delete(s.routes, old)
			}
		}
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
		dead := multipath[2]&unix.RTNH_F_DEAD != 0
		hop.link = binary.NativeEndian.Uint32(multipath[4:])
		attributes(multipath[unix.SizeofRtNexthop:n], func(typ uint16, v []byte) {
			if typ == unix.RTA_GATEWAY {
				hop.via, _ = netip.AddrFromSlice(v)
			}
		})
		if !dead {
			set(hop)
		}
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
