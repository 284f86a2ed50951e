package path

import (
	"net/netip"
	"slices"
)

// sites finds the site with the longest network around an address: one question for each
// length there is, the longest first, whatever the number of networks.
type sites struct {
	nets   map[netip.Prefix]string
	v4, v6 []int // lengths, longest first
}

func (s *sites) add(n netip.Prefix, site string) {
	if s.nets == nil {
		s.nets = map[netip.Prefix]string{}
	}
	s.nets[n] = site
	lengths := &s.v6
	if n.Addr().Is4() {
		lengths = &s.v4
	}
	if !slices.Contains(*lengths, n.Bits()) {
		*lengths = append(*lengths, n.Bits())
	}
}

func (s *sites) ready() {
	longest := func(a, b int) int { return b - a }
	slices.SortFunc(s.v4, longest)
	slices.SortFunc(s.v6, longest)
}

// lookup returns the site of an address, which is not IPv4-mapped, or "".
func (s *sites) lookup(a netip.Addr) string {
	lengths := s.v6
	if a.Is4() {
		lengths = s.v4
	}
	for _, bits := range lengths {
		if n, err := a.WithZone("").Prefix(bits); err == nil {
			if site, ok := s.nets[n]; ok {
				return site
			}
		}
	}
	return ""
}
