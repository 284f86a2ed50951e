package dataplane

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/clienttable"
)

// Filter chooses packets by what they are and by what a Plane did with them. Every field that is not zero must fit; the
// zero Filter chooses all packets. It is plain data.
type Filter struct {
	// Protocol is that of the packets, such as 6 for TCP.
	Protocol uint8
	// A and B are the ends of the packets' flow, in either direction. Packets of a session fit by the client and the
	// virtual address, too, whichever side of the Plane they come from.
	A, B End
	// Services and Nodes are names: of one of each the packets must be.
	Services, Nodes []string
	// Dropped chooses only packets that were dropped, with Reasons for one of these.
	Dropped bool
	Reasons []Reason
}

// End is one end of a flow. The zero End is any.
type End struct {
	Net  netip.Prefix // zero: any address
	Port uint16       // zero: any port
}

func (e *End) contains(a netip.AddrPort) bool {
	return (!e.Net.IsValid() || e.Net.Contains(a.Addr())) && (e.Port == 0 || e.Port == a.Port())
}

func (f *Filter) validate(field string) (errs []error) {
	for _, x := range []struct {
		name string
		net  netip.Prefix
	}{{"A", f.A.Net}, {"B", f.B.Net}} {
		if x.net != (netip.Prefix{}) && (!x.net.IsValid() || x.net.Addr().Is4In6()) {
			errs = append(errs, invalid(field+"."+x.name+".Net", x.net, "a network such as 192.0.2.0/24"))
		}
	}
	for i, r := range f.Reasons {
		if r == NotDropped || r >= numReasons {
			errs = append(errs, invalid(fmt.Sprintf("%s.Reasons[%d]", field, i), uint8(r), "a reason for a drop"))
		}
	}
	if len(f.Reasons) > 0 && !f.Dropped {
		errs = append(errs, invalid(field+".Dropped", false, "true, with Reasons"))
	}
	return errs
}

func (f *Filter) clone() Filter {
	c := *f
	c.Services, c.Nodes, c.Reasons = slices.Clone(f.Services), slices.Clone(f.Nodes), slices.Clone(f.Reasons)
	return c
}

// flow reports whether packets of a flow may fit. The zero Flow is that of a packet that cannot be read.
func (f *Filter) flow(k clienttable.Flow) bool {
	if f.Protocol == 0 && f.A == (End{}) && f.B == (End{}) {
		return true
	}
	if k == (clienttable.Flow{}) || f.Protocol != 0 && f.Protocol != k.Protocol() {
		return false
	}
	src, dst := k.Src(), k.Dst()
	return f.A.contains(src) && f.B.contains(dst) || f.A.contains(dst) && f.B.contains(src)
}

// fate reports whether what became of a packet fits.
func (f *Filter) fate(e *Explanation) bool {
	switch {
	case f.Dropped && e.Verdict != Dropped,
		len(f.Reasons) > 0 && !slices.Contains(f.Reasons, e.Reason),
		len(f.Services) > 0 && !slices.Contains(f.Services, e.Service),
		len(f.Nodes) > 0 && !slices.Contains(f.Nodes, e.Node):
		return false
	}
	return true
}
