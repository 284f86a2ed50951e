package policy

import (
	"fmt"
	"net/netip"
	"strings"
)

// AddrRange is an inclusive range of client addresses of one family, from First to Last. The zero AddrRange
// matches any client. IPv4-mapped IPv6 addresses count as IPv4; [PrefixRange] and
// [ParseAddrRange] write them so. AddrRanges are comparable: a prefix and a from–to that hold the
// same addresses are equal.
type AddrRange struct{ First, Last netip.Addr }

// PrefixRange returns the addresses of a prefix, host bits ignored. The zero Prefix
// gives the range of any client; other invalid prefixes give an invalid range.
func PrefixRange(p netip.Prefix) AddrRange {
	if !p.IsValid() {
		return AddrRange{First: p.Addr()}
	}
	p = p.Masked()
	x, f := split(p.Addr())
	bits := p.Bits()
	if f == v4 && p.Addr().Is4In6() {
		bits -= 96
	}
	return AddrRange{f.addr(x), f.addr(f.last(x, bits))}
}

// IsAny reports whether r matches every client.
func (r AddrRange) IsAny() bool { return r == AddrRange{} }

// IsValid reports whether r is any client, or two addresses of one family and without
// zone, the first not after the last.
func (r AddrRange) IsValid() bool { return r.validate() == nil }

func (r AddrRange) validate() error {
	if r.IsAny() {
		return nil
	}
	first, f := split(r.First)
	last, g := split(r.Last)
	var why string
	switch {
	case f == noFamily || g == noFamily:
		why = "one end is missing"
	case r.First.Zone() != "" || r.Last.Zone() != "":
		why = "addresses must not have a zone"
	case f != g:
		why = "both ends must be of one family"
	case last.less(first):
		why = "the first address is after the last"
	default:
		return nil
	}
	return fmt.Errorf("%w: clients %v-%v: %s; want a range like 10.0.0.1-10.0.0.9", ErrInvalid, r.First, r.Last, why)
}

// span returns a valid range as numbers; any client of family f is all of it.
func (r AddrRange) span(f family) span {
	if r.IsAny() {
		return span{u128{}, f.max()}
	}
	first, _ := split(r.First)
	last, _ := split(r.Last)
	return span{first, last}
}

// Contains reports whether the range holds a.
func (r AddrRange) Contains(a netip.Addr) bool {
	if r.IsAny() {
		return a.IsValid()
	}
	x, f := split(a)
	first, g := split(r.First)
	last, h := split(r.Last)
	return f != noFamily && f == g && f == h && span{first, last}.contains(x)
}

// Prefix returns the prefix that holds the same addresses, if there is one.
func (r AddrRange) Prefix() (p netip.Prefix, ok bool) {
	if r.IsAny() || !r.IsValid() {
		return netip.Prefix{}, false
	}
	first, f := split(r.First)
	last, _ := split(r.Last)
	for bits := f.bits(); bits >= 0; bits-- {
		switch end := f.last(first, bits); {
		case f.mask(first, bits) != first || last.less(end):
			return netip.Prefix{}, false
		case end == last:
			return netip.PrefixFrom(f.addr(first), bits), true
		}
	}
	return netip.Prefix{}, false
}

// ParseAddrRange reads "any", an address ("192.0.2.1"), a prefix ("10.0.0.0/8") or a
// range ("10.0.0.1-10.0.0.99").
func ParseAddrRange(s string) (AddrRange, error) {
	if strings.EqualFold(s, "any") {
		return AddrRange{}, nil
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return AddrRange{}, fmt.Errorf("%w: clients %q: %w; want any, an address, a prefix like 10.0.0.0/8, or a range like 10.0.0.1-10.0.0.9", ErrInvalid, s, err)
		}
		return PrefixRange(p), nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, err1 := netip.ParseAddr(first)
	to, err2 := netip.ParseAddr(last)
	if err1 != nil || err2 != nil {
		return AddrRange{}, fmt.Errorf("%w: clients %q: want any, an address, a prefix like 10.0.0.0/8, or a range like 10.0.0.1-10.0.0.9", ErrInvalid, s)
	}
	r := AddrRange{from, to}
	if err := r.validate(); err != nil {
		return AddrRange{}, err
	}
	return r.unmap(), nil
}

func (r AddrRange) unmap() AddrRange { return AddrRange{r.First.Unmap(), r.Last.Unmap()} }

// String returns the shortest form that [ParseAddrRange] reads.
func (r AddrRange) String() string {
	if r.IsAny() {
		return "any"
	}
	if p, ok := r.Prefix(); ok {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// AppendText implements encoding.TextAppender.
func (r AddrRange) AppendText(b []byte) ([]byte, error) {
	if err := r.validate(); err != nil {
		return b, err
	}
	return append(b, r.String()...), nil
}

// MarshalText implements encoding.TextMarshaler.
func (r AddrRange) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler; see [ParseAddrRange].
func (r *AddrRange) UnmarshalText(text []byte) (err error) {
	*r, err = ParseAddrRange(string(text))
	return err
}
