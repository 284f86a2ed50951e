package cluster_test

import "github.com/lbprim/lbprim/steering/cluster/flowshare"

// slimStore is a flowshare.Store for the flows of a simulation, which have a number: 24 bytes an entry instead of 64 and more, so that
// millions fit. The zero slimStore is empty.
type slimStore struct {
	slots []slimSlot // a power of two, probed in a line
	used  int        // of slots, those of deleted entries included
	n     int
}

type slimSlot struct {
	version       uint64
	key           uint32 // number of the flow + 1; 0 is free
	origin, stamp uint32
	value         uint16
	flags         uint8
	deleted       bool
}

// simNumber is the number of a flow of simFlow.
func simNumber(f flowshare.Flow) uint32 {
	client, server := f.Ends()
	if client.Port() == 443 {
		client = server
	}
	b := client.Addr().As4()
	return uint32(b[0]-10)<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// at returns the place of a key, or the first free one.
func (s *slimStore) at(key uint32) int {
	mask := len(s.slots) - 1
	for i := int(uint64(key*0x9e3779b1) * uint64(len(s.slots)) >> 32); ; i++ {
		if k := s.slots[i&mask].key; k == key || k == 0 {
			return i & mask
		}
	}
}

// Load implements flowshare.Store.
func (s *slimStore) Load(f flowshare.Flow) (flowshare.Item, bool) {
	if s.n == 0 {
		return flowshare.Item{}, false
	}
	if x := &s.slots[s.at(simNumber(f)+1)]; x.key != 0 && !x.deleted {
		return x.item(), true
	}
	return flowshare.Item{}, false
}

func (x *slimSlot) item() flowshare.Item {
	return flowshare.Item{Version: x.version, Origin: x.origin, Value: uint32(x.value), Stamp: x.stamp, Flags: x.flags}
}

// Save implements flowshare.Store.
func (s *slimStore) Save(f flowshare.Flow, it flowshare.Item) {
	if s.used >= len(s.slots)*7/8 {
		s.grow()
	}
	x := &s.slots[s.at(simNumber(f)+1)]
	if x.key == 0 {
		s.used++
	}
	if x.key == 0 || x.deleted {
		s.n++
	}
	*x = slimSlot{version: it.Version, key: simNumber(f) + 1, origin: it.Origin, stamp: it.Stamp, value: uint16(it.Value), flags: it.Flags}
}

func (s *slimStore) grow() {
	old := s.slots
	size := 64
	for size*5/8 <= s.n {
		size *= 2
	}
	s.slots, s.used = make([]slimSlot, size), s.n
	for i := range old {
		if x := &old[i]; x.key != 0 && !x.deleted {
			s.slots[s.at(x.key)] = *x
		}
	}
}

// Delete implements flowshare.Store.
func (s *slimStore) Delete(f flowshare.Flow) {
	if s.n == 0 {
		return
	}
	if x := &s.slots[s.at(simNumber(f)+1)]; x.key != 0 && !x.deleted {
		x.deleted = true
		s.n--
	}
}

// Range implements flowshare.Store.
func (s *slimStore) Range(part int, visit func(flowshare.Flow, flowshare.Item) bool) {
	n := len(s.slots) / flowshare.Parts
	for i := part * n; i < part*n+n; i++ {
		if x := &s.slots[i]; x.key != 0 && !x.deleted && !visit(simFlow(int(x.key-1)), x.item()) {
			return
		}
	}
}

// Len implements flowshare.Store.
func (s *slimStore) Len() int { return s.n }
