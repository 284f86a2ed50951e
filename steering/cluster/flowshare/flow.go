package flowshare

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/steering"
)

// A Flow names a flow without a direction: both directions of a connection are the same
// Flow. It is comparable and may be copied. The zero Flow is none.
type Flow struct {
	a, b         [16]byte
	aPort, bPort uint16
	proto        uint8
	set          bool
}

// MakeFlow returns the flow between two endpoints. IPv4 addresses and their IPv4-mapped
// forms are the same, zones do not count.
func MakeFlow(protocol uint8, x, y netip.AddrPort) Flow {
	f := Flow{a: x.Addr().As16(), b: y.Addr().As16(), aPort: x.Port(), bPort: y.Port(), proto: protocol, set: true}
	if c := bytes.Compare(f.a[:], f.b[:]); c > 0 || c == 0 && f.aPort > f.bPort {
		f.a, f.b, f.aPort, f.bPort = f.b, f.a, f.bPort, f.aPort
	}
	return f
}

// IsZero says whether f is the zero Flow.
func (f Flow) IsZero() bool { return !f.set }

// Protocol returns the protocol number.
func (f Flow) Protocol() uint8 { return f.proto }

// Ends returns both endpoints, the lower one first.
func (f Flow) Ends() (netip.AddrPort, netip.AddrPort) {
	return netip.AddrPortFrom(netip.AddrFrom16(f.a).Unmap(), f.aPort), netip.AddrPortFrom(netip.AddrFrom16(f.b).Unmap(), f.bPort)
}

// Hash is [steering.HashFlow] of the flow: the same on every balancer.
func (f Flow) Hash() uint64 {
	a, b := f.Ends()
	return steering.HashFlow(f.proto, a, b)
}

// String returns "6 10.0.0.1:4711-192.0.2.1:443".
func (f Flow) String() string {
	a, b := f.Ends()
	return fmt.Sprintf("%d %v-%v", f.proto, a, b)
}

// On the wire a flow is
//
//	family 1 (4 or 6) | protocol 1 | address 4 or 16 | port 2 | address 4 or 16 | port 2
//
// in the order Flow keeps it in. Numbers are big-endian.
const (
	flow4 = 2 + 4 + 2 + 4 + 2
	flow6 = 2 + 16 + 2 + 16 + 2
)

func is4(a *[16]byte) bool {
	return binary.BigEndian.Uint64(a[:]) == 0 && binary.BigEndian.Uint32(a[8:]) == 0xffff
}

// appendFlow appends f.
func appendFlow(b []byte, f *Flow) []byte {
	from, family := 0, byte(6)
	if is4(&f.a) && is4(&f.b) {
		from, family = 12, 4
	}
	b = append(b, family, f.proto)
	b = binary.BigEndian.AppendUint16(append(b, f.a[from:]...), f.aPort)
	return binary.BigEndian.AppendUint16(append(b, f.b[from:]...), f.bPort)
}

// parseFlow reads what appendFlow wrote, and nothing else: a flow has one form.
func parseFlow(b []byte) (f Flow, rest []byte, ok bool) {
	if len(b) < flow4 {
		return f, b, false
	}
	from, n := 0, flow6
	switch b[0] {
	case 4:
		from, n = 12, flow4
		f.a[10], f.a[11], f.b[10], f.b[11] = 0xff, 0xff, 0xff, 0xff
	case 6:
		if len(b) < flow6 {
			return f, b, false
		}
	default:
		return f, b, false
	}
	f.proto, f.set = b[1], true
	rest = b[2:n]
	rest = rest[copy(f.a[from:], rest):]
	f.aPort = binary.BigEndian.Uint16(rest)
	rest = rest[2:]
	rest = rest[copy(f.b[from:], rest):]
	f.bPort = binary.BigEndian.Uint16(rest)
	if c := bytes.Compare(f.a[:], f.b[:]); c > 0 || c == 0 && f.aPort > f.bPort || from == 0 && is4(&f.a) && is4(&f.b) {
		return Flow{}, b, false
	}
	return f, b[n:], true
}
