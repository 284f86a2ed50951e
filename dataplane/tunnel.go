package dataplane

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/lbprim/lbprim/internal/enum"
	"github.com/lbprim/lbprim/internal/wire"
)

// Tunnel says how packets are put into others for a node. The zero Tunnel is IP in IP. It is plain
// data; two are the same if they are equal.
type Tunnel struct {
	Kind TunnelKind // the outer headers. Default IPIP
	// Key of GRE; 0 is none. VXLAN: the network identifier, 24 bits.
	Key uint32
	// Port is the UDP port of GUE and VXLAN. Default 6080 and 4789.
	Port uint16
	// NodeMAC is the inner destination of VXLAN, by default a broadcast; its source is the locally
	// administered 02:00:00:00:00:01.
	NodeMAC [6]byte
}

// TunnelKind is a way to put an IP packet into another.
type TunnelKind uint8

const (
	// IPIP has the inner packet right behind the outer header: IPv4 or IPv6 in either (RFC 2003, RFC 2473, RFC 4213).
	IPIP TunnelKind = iota
	// GRE is Generic Routing Encapsulation, with or without a key (RFC 2784, RFC 2890).
	GRE
	// GUE is Generic UDP Encapsulation, variant 0.
	GUE
	// VXLAN carries an Ethernet frame in UDP (RFC 7348).
	VXLAN
)

var tunnelNames = enum.Of[TunnelKind]("dataplane: tunnel kind", "ipip", "gre", "gue", "vxlan")

// String returns the name of k.
func (k TunnelKind) String() string { return tunnelNames.String(k) }

// AppendText implements encoding.TextAppender.
func (k TunnelKind) AppendText(b []byte) ([]byte, error) { return tunnelNames.Append(b, k) }

// MarshalText implements encoding.TextMarshaler.
func (k TunnelKind) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *TunnelKind) UnmarshalText(text []byte) error { return tunnelNames.Parse(k, text) }

// String returns a form for people, such as "vxlan key 7 port 4789".
func (t Tunnel) String() string {
	s := t.Kind.String()
	if t.Key != 0 {
		s += fmt.Sprintf(" key %d", t.Key)
	}
	if t.Port != 0 {
		s += fmt.Sprintf(" port %d", t.Port)
	}
	if t.NodeMAC != [6]byte{} {
		s += " to " + net.HardwareAddr(t.NodeMAC[:]).String()
	}
	return s
}

func (t *Tunnel) resolve(field string) (errs []error) {
	if int(t.Kind) >= tunnelNames.Len() {
		errs = append(errs, invalid(field+".Kind", uint8(t.Kind), "ipip, gre, gue or vxlan"))
	}
	if t.Key != 0 && (t.Kind == IPIP || t.Kind == GUE) {
		errs = append(errs, invalid(field+".Key", t.Key, "0, since the tunnel has no key"))
	}
	if t.Kind == VXLAN && t.Key >= 1<<24 {
		errs = append(errs, invalid(field+".Key", t.Key, "less than 16777216"))
	}
	if t.Port != 0 && (t.Kind == IPIP || t.Kind == GRE) {
		errs = append(errs, invalid(field+".Port", t.Port, "0, since the tunnel has no ports"))
	}
	if t.NodeMAC != [6]byte{} && t.Kind != VXLAN {
		errs = append(errs, invalid(field+".NodeMAC", net.HardwareAddr(t.NodeMAC[:]), "none, since the tunnel carries no frames"))
	}
	if t.Port == 0 {
		switch t.Kind {
		case GUE:
			t.Port = 6080
		case VXLAN:
			t.Port = 4789
		}
	}
	return errs
}

func (t *Tunnel) wire() wire.Tunnel {
	w := wire.Tunnel{
		Kind: wire.TunnelKind(t.Kind), HasKey: t.Key != 0, Key: t.Key, Port: t.Port,
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: t.NodeMAC,
	}
	if t.NodeMAC == [6]byte{} {
		w.DstMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	return w
}

// deliver sends a packet to a node that answers past the balancer: as it is, or in a tunnel. Super-packets
// are split first, since the kernel does not segment inside these tunnels.
func (w *Worker) deliver(pk *packet, rec *record) bool {
	y := w.way(rec.way)
	if y.forward == DSR {
		if !w.link.Ethernet {
			w.drop(pk, NoRoute)
			return false
		}
		if !w.routeVia(pk, addrPort(&rec.node).Addr()) {
			return false
		}
		pk.verdict = Forwarded
		w.emitPacket(pk)
		return true
	}
	return w.encapsulated(pk, y, &rec.node)
}

// encapsulated sends a packet in a tunnel.
func (w *Worker) encapsulated(pk *packet, y *way, to *wire.End) bool {
	size := 0
	if w.link.Virtio {
		o := readOffload(pk.buf[Headroom-virtioLen:])
		switch o.gsoType &^ gsoECN {
		case gsoNone:
		case gsoTCPv4, gsoTCPv6, gsoUDPL4:
			size = int(o.gsoSize)
			proto := uint8(wire.ProtoTCP)
			if o.gsoType&^gsoECN == gsoUDPL4 {
				proto = wire.ProtoUDP
			}
			if size == 0 || pk.v.Proto != proto || pk.v.Mark&wire.Fragment != 0 || proto == wire.ProtoTCP && pk.v.Segments(size) > maxSegments {
				w.drop(pk, OddOffload)
				return false
			}
		default:
			w.drop(pk, OddOffload)
			return false
		}
		if size == 0 && pk.partial {
			wire.Complete(pk.ip, int(pk.v.L4), int(pk.v.SumOff), pk.v.Proto == wire.ProtoUDP)
			pk.partial = false
		}
	}
	node := addrPort(to).Addr()
	src, ok := w.snap.addr(node.Is6())
	if !ok {
		w.drop(pk, NoRoute)
		return false
	}
	t := tunnelled{way: y, mtu: w.pathMTU(y, node), over: y.wire.Overhead(node.Is6()), outer6: node.Is6(), local: endOf(netip.AddrPortFrom(src, 0)), node: *to}
	t.sport = 49152 + uint16(pk.key.Hash(w.p.cfg.Seed)>>50)
	if w.tr != nil {
		w.tr.step("tunnel", "%v to %v, %d bytes of headers", &y.tunnel, node, t.over)
	}
	segment := len(pk.ip)
	if size > 0 {
		segment = int(pk.v.Payload) + min(size, pk.v.PayloadLen())
	}
	if segment+t.over > 65535 {
		w.drop(pk, TooBig) // there is no such packet, not even in fragments
		return false
	}
	t.loose = t.mtu < y.mtu && t.mtu == minMTU4
	if segment+t.over > t.mtu {
		w.tellTooBig(pk, t.mtu-t.over)
		if size > 0 && pk.v.Proto == wire.ProtoTCP && t.mtu < y.mtu {
			segment = t.mtu - t.over // a stream may as well be cut elsewhere than its sender thought
			size = segment - int(pk.v.Payload)
		}
	}
	n := pk.v.Segments(size)
	for i := range n {
		h := Headroom
		if w.link.Ethernet {
			h += pk.frame.L3
		}
		room := w.arena.take(h + t.over + segment)
		m := copy(room[h+t.over:], pk.ip[:segment])
		if size > 0 {
			m = pk.v.PutSegment(room[h+t.over:], pk.ip, i, size)
		}
		if !w.encapsulate(pk, &t, room[:h+t.over+m], h) {
			return false
		}
	}
	pk.verdict = Forwarded
	return true
}

// maxSegments is in how many packets a super-packet of a stream may fall: 64 KiB by the smallest segments that Linux sends,
// of 48 bytes, and some. Datagrams may be smaller, and are as many as they are.
const maxSegments = 1400

// tunnelled is what the packets of one super-packet have in common.
type tunnelled struct {
	*way
	mtu         int  // of the way as it is now
	loose       bool // routers on it take less than they should, and may break packets into fragments
	over        int
	outer6      bool
	local, node wire.End
	sport       uint16
}

// encapsulate writes the outer headers into buf, whose outer packet begins at h, and sends it: in
// fragments of the outer packet where it is too long, whether the inner one allows it or not. The
// inner packet stays as it is.
func (w *Worker) encapsulate(pk *packet, t *tunnelled, buf []byte, h int) bool {
	outer := buf[h:]
	at := 12
	if t.outer6 {
		at = 0
	}
	fits := len(outer) <= t.mtu
	df, ident := fits && !t.loose && pk.v.DontFragment(pk.ip), uint32(0)
	if !df { // workers share the addresses, and so the identifications
		ident = w.p.ident.Add(1)
	}
	t.wire.Put(outer, t.local.Addr[at:], t.node.Addr[at:], pk.v.Version == 6, pk.v.TOS(pk.ip), t.sport,
		df, uint16(ident))
	if fits {
		return w.emitNew(pk, buf, h, t)
	}
	n := wire.FragmentLen(t.outer6, t.mtu)
	head := wire.IPv4Len
	if t.outer6 {
		head = wire.IPv6Len
	}
	for off := 0; head+off < len(outer); off += n {
		part := w.arena.take(h + n + 48)
		m := wire.PutFragment(part[h:], outer, off, n, ident)
		if !w.emitNew(pk, part[:h+m], h, t) {
			return false
		}
	}
	return true
}

// emitNew sends a packet that w has made out of pk.
func (w *Worker) emitNew(pk *packet, buf []byte, h int, t *tunnelled) bool {
	copy(buf[:Headroom-virtioLen], pk.buf)
	clear(buf[Headroom-virtioLen : Headroom])
	if w.link.Ethernet {
		f := buf[Headroom:h]
		copy(f, pk.buf[Headroom:Headroom+pk.frame.L3])
		typ := uint16(wire.EtherIPv4)
		if t.outer6 {
			typ = wire.EtherIPv6
		}
		binary.BigEndian.PutUint16(f[len(f)-2:], typ)
		hop, ok := w.p.cfg.NextHop(addrPort(&t.node).Addr())
		if !ok {
			w.drop(pk, NoRoute)
			return false
		}
		hop.frame(buf)
	}
	w.emit(buf)
	return true
}
