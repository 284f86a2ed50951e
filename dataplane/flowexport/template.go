package flowexport

import (
	"encoding/binary"
	"net/netip"
	"time"
	"unicode/utf8"
)

// element is one information element of a template (IANA "IP Flow Information Export (IPFIX) Entities").
type element struct {
	id         uint16
	length     uint16 // variable: 65535, IPFIX only
	enterprise bool
	put        func(b []byte, f *Flow, boot time.Time) []byte
}

const variable = 0xffff

// nameLen is the length of names in NetFlow version 9, which has none of variable length.
const nameLen = 32

func u8(id uint16, get func(*Flow) uint8) element {
	return element{id: id, length: 1, put: func(b []byte, f *Flow, _ time.Time) []byte { return append(b, get(f)) }}
}

func u16(id uint16, get func(*Flow) uint16) element {
	return element{id: id, length: 2, put: func(b []byte, f *Flow, _ time.Time) []byte { return binary.BigEndian.AppendUint16(b, get(f)) }}
}

func u32(id uint16, get func(*Flow) uint32) element {
	return element{id: id, length: 4, put: func(b []byte, f *Flow, _ time.Time) []byte { return binary.BigEndian.AppendUint32(b, get(f)) }}
}

func u64(id uint16, get func(*Flow) uint64) element {
	return element{id: id, length: 8, put: func(b []byte, f *Flow, _ time.Time) []byte { return binary.BigEndian.AppendUint64(b, get(f)) }}
}

func addr(id uint16, v4 bool, get func(*Flow) netip.Addr) element {
	e := element{id: id, length: 16}
	if v4 {
		e.length = 4
	}
	e.put = func(b []byte, f *Flow, _ time.Time) []byte {
		a := get(f).Unmap()
		switch {
		case v4 && a.Is4():
			x := a.As4()
			return append(b, x[:]...)
		case !v4 && a.Is6():
			x := a.As16()
			return append(b, x[:]...)
		}
		return append(b, make([]byte, e.length)...) // not translated, or by another family
	}
	return e
}

func name(id uint16, fixed, enterprise bool, most int, get func(*Flow) string) element {
	if fixed {
		return element{id: id, length: nameLen, put: func(b []byte, f *Flow, _ time.Time) []byte {
			s := cut(get(f), nameLen)
			return append(append(b, s...), make([]byte, nameLen-len(s))...)
		}}
	}
	return element{id: id, length: variable, enterprise: enterprise, put: func(b []byte, f *Flow, _ time.Time) []byte {
		// RFC 7011, 7: one byte of length below 255, else 255 and two bytes.
		s := cut(get(f), most)
		if len(s) < 255 {
			return append(append(b, byte(len(s))), s...)
		}
		return append(append(b, 255, 0, 255), s...)
	}}
}

// cut shortens a text to at most n bytes of whole characters, as strings must be UTF-8 (RFC 7011, 6.1.6).
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// natOr is the translated endpoint, or the original one where there is no translation.
func natOr(nat, orig netip.AddrPort) netip.AddrPort {
	if nat.IsValid() {
		return nat
	}
	return orig
}

// elements returns the template of one family and version.
func elements(v Version, v4, enterprise bool, mostName int) []element {
	ids := struct{ src, dst, natSrc, natDst, icmp uint16 }{8, 12, 225, 226, 32}
	if !v4 {
		ids = struct{ src, dst, natSrc, natDst, icmp uint16 }{27, 28, 281, 282, 139}
	}
	list := []element{
		addr(ids.src, v4, func(f *Flow) netip.Addr { return f.Src.Addr() }),
		addr(ids.dst, v4, func(f *Flow) netip.Addr { return f.Dst.Addr() }),
		u16(7, func(f *Flow) uint16 { return f.Src.Port() }),
		u16(11, func(f *Flow) uint16 { return f.Dst.Port() }),
		u8(4, func(f *Flow) uint8 { return f.Protocol }),
		u8(5, func(f *Flow) uint8 { return f.TOS }),
		u8(6, func(f *Flow) uint8 { return f.TCPFlags }),
		u64(1, func(f *Flow) uint64 { return f.Octets }),
		u64(2, func(f *Flow) uint64 { return f.Packets }),
		u32(10, func(f *Flow) uint32 { return f.InPort }),
		u32(14, func(f *Flow) uint32 { return f.OutPort }),
		addr(ids.natSrc, v4, func(f *Flow) netip.Addr { return natOr(f.NATSrc, f.Src).Addr() }),
		addr(ids.natDst, v4, func(f *Flow) netip.Addr { return natOr(f.NATDst, f.Dst).Addr() }),
		u16(227, func(f *Flow) uint16 { return natOr(f.NATSrc, f.Src).Port() }),
		u16(228, func(f *Flow) uint16 { return natOr(f.NATDst, f.Dst).Port() }),
		u16(ids.icmp, func(f *Flow) uint16 { return uint16(f.ICMPType)<<8 | uint16(f.ICMPCode) }),
		u8(136, func(f *Flow) uint8 { return uint8(f.Reason) }),
	}
	if v == IPFIX {
		list = append(list,
			u64(152, func(f *Flow) uint64 { return uint64(f.Start.UnixMilli()) }),
			u64(153, func(f *Flow) uint64 { return uint64(f.End.UnixMilli()) }),
			name(96, false, false, mostName, func(f *Flow) string { return f.Policy }))
		if enterprise {
			list = append(list, name(elementNode, false, true, mostName, func(f *Flow) string { return f.Node }))
		}
		return list
	}
	uptime := func(id uint16, get func(*Flow) time.Time) element {
		return element{id: id, length: 4, put: func(b []byte, f *Flow, boot time.Time) []byte {
			return binary.BigEndian.AppendUint32(b, uint32(max(0, get(f).Sub(boot).Milliseconds())))
		}}
	}
	return append(list,
		uptime(22, func(f *Flow) time.Time { return f.Start }),
		uptime(21, func(f *Flow) time.Time { return f.End }),
		name(96, true, false, nameLen, func(f *Flow) string { return f.Policy }))
}

// elementNode is the number of the node's name among the elements of Config.EnterpriseNumber.
const elementNode = 1

// template is one family's record layout under its number.
type template struct {
	id       uint16
	elements []element
}

// appendTo appends the template record (RFC 7011, 3.4.1; RFC 3954, 5.2).
func (t *template) appendTo(b []byte, enterprise uint32) []byte {
	b = binary.BigEndian.AppendUint16(b, t.id)
	b = binary.BigEndian.AppendUint16(b, uint16(len(t.elements)))
	for _, e := range t.elements {
		id := e.id
		if e.enterprise {
			id |= 0x8000
		}
		b = binary.BigEndian.AppendUint16(b, id)
		b = binary.BigEndian.AppendUint16(b, e.length)
		if e.enterprise {
			b = binary.BigEndian.AppendUint32(b, enterprise)
		}
	}
	return b
}

func (t *template) appendRecord(b []byte, f *Flow, boot time.Time) []byte {
	for i := range t.elements {
		b = t.elements[i].put(b, f, boot)
	}
	return b
}
