package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// family of an address, and its bytes.
func family(a netip.Addr) (byte, []byte) {
	if a.Is4() {
		return unix.AF_INET, a.AsSlice()
	}
	return unix.AF_INET6, a.AsSlice()
}

// AddAddr gives an interface an address; the prefix length says what is on link. An IPv6
// address is usable at once: duplicate address detection is left out.
func AddAddr(index int, p netip.Prefix) error {
	// ifaddrmsg: family(1) prefixlen(1) flags(1) scope(1) index(4).
	fam, addr := family(p.Addr())
	fixed := []byte{fam, byte(p.Bits()), 0, unix.RT_SCOPE_UNIVERSE, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(fixed[4:], uint32(index))
	m := newMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, fixed...)
	m.attr(unix.IFA_LOCAL, addr).attr(unix.IFA_ADDRESS, addr)
	if fam == unix.AF_INET6 {
		m.uint32(unix.IFA_FLAGS, unix.IFA_F_NODAD)
	}
	if _, err := m.do(); err != nil {
		return fmt.Errorf("add address %s: %w", p, err)
	}
	return nil
}

// Route is one entry of a routing table.
type Route struct {
	Dst     netip.Prefix // 0.0.0.0/0 or ::/0 is the default route
	Gateway netip.Addr   // not valid: on link
	Index   int          // interface, 0 if the gateway tells
	Table   uint32       // 0: main
}

func (r Route) message(typ, flags uint16) *message {
	// rtmsg: family(1) dst_len(1) src_len(1) tos(1) table(1) protocol(1) scope(1) type(1) flags(4).
	fam, dst := family(r.Dst.Masked().Addr())
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if !r.Gateway.IsValid() && fam == unix.AF_INET {
		scope = unix.RT_SCOPE_LINK
	}
	m := newMessage(typ, flags, fam, byte(r.Dst.Bits()), 0, 0, 0, unix.RTPROT_STATIC, scope, unix.RTN_UNICAST, 0, 0, 0, 0)
	table := r.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	m.uint32(unix.RTA_TABLE, table)
	if r.Dst.Bits() > 0 {
		m.attr(unix.RTA_DST, dst)
	}
	if r.Gateway.IsValid() {
		m.attr(unix.RTA_GATEWAY, r.Gateway.AsSlice())
	}
	if r.Index != 0 {
		m.uint32(unix.RTA_OIF, uint32(r.Index))
	}
	return m
}

// ReplaceRoute adds a route, in place of one to the same destination.
func ReplaceRoute(r Route) error {
	if _, err := r.message(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE).do(); err != nil {
		return fmt.Errorf("add route to %s: %w", r.Dst, err)
	}
	return nil
}

// DeleteRoute removes a route.
func DeleteRoute(r Route) error {
	if _, err := r.message(unix.RTM_DELROUTE, 0).do(); err != nil {
		return fmt.Errorf("delete route to %s: %w", r.Dst, err)
	}
	return nil
}

// NoFamily reports whether an error says that the kernel lacks the address family, as with IPv6 switched off at boot.
func NoFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// Rule sends the packets that come in by an interface to a routing table of their own, or of these those from one address. It
// is made for both address families, as far as the kernel has them, or for that of the address.
type Rule struct {
	In       string // "lo" for what this host sends
	From     netip.Addr
	Table    uint32
	Priority uint32
}

func (r Rule) both(typ, flags uint16) error {
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		if r.From.IsValid() && r.From.Is6() != (fam == unix.AF_INET6) {
			continue
		}
		// fib_rule_hdr: family(1) dst_len(1) src_len(1) tos(1) table(1) res(2) action(1) flags(4).
		m := newMessage(typ, flags, fam, 0, byte(r.From.BitLen()), 0, unix.RT_TABLE_UNSPEC, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0)
		m.string(unix.FRA_IIFNAME, r.In).uint32(unix.FRA_TABLE, r.Table).uint32(unix.FRA_PRIORITY, r.Priority)
		if r.From.IsValid() {
			m.attr(unix.FRA_SRC, r.From.AsSlice())
		}
		if _, err := m.do(); err != nil {
			if fam == unix.AF_INET6 && NoFamily(err) {
				continue
			}
			return fmt.Errorf("routing rule for interface %s to table %d: %w", r.In, r.Table, err)
		}
	}
	return nil
}

// AddRule adds r.
func AddRule(r Rule) error { return r.both(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL) }

// DeleteRule removes r.
func DeleteRule(r Rule) error { return r.both(unix.RTM_DELRULE, 0) }

// Rules lists the rules that send what comes in by an interface to a table, of both address families without repetition.
func Rules() (rules []Rule, err error) {
	const header = 12 // fib_rule_hdr
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		answers, err := newMessage(unix.RTM_GETRULE, unix.NLM_F_DUMP, fam, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0).do()
		if fam == unix.AF_INET6 && NoFamily(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		for _, b := range answers {
			if len(b) < header {
				continue
			}
			var r Rule
			if v, ok := find(b[header:], unix.FRA_IIFNAME); ok {
				r.In = unix.ByteSliceToString(v)
			}
			if v, ok := find(b[header:], unix.FRA_TABLE); ok && len(v) == 4 {
				r.Table = binary.NativeEndian.Uint32(v)
			}
			if v, ok := find(b[header:], unix.FRA_PRIORITY); ok && len(v) == 4 {
				r.Priority = binary.NativeEndian.Uint32(v)
			}
			if r.In != "" && r.Table != 0 && !slices.Contains(rules, r) {
				rules = append(rules, r)
			}
		}
	}
	return rules, nil
}
