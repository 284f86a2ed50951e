package main

import (
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// sniffed says what packets to and from a target are.
type sniffed struct {
	target netip.AddrPort
	decode func(b []byte) (line string, ok bool) // what is in a UDP datagram, or nil
	client uint16                                // the port that the target was last asked from
}

// outgoing reports whether a packet between ports of one and the same host goes to the target: servers may answer from another port.
func (s *sniffed) outgoing(src, dst uint16) bool {
	if dst == s.target.Port() {
		s.client = src
		return true
	}
	return src == s.client
}

// describe says in a line what an IP packet is, and whether it goes to the target or comes from it. Packets of others are "".
func (s *sniffed) describe(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	first := layers.LayerTypeIPv4
	if b[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	p := gopacket.NewPacket(b, first, gopacket.Default)
	network := p.NetworkLayer()
	if network == nil {
		return ""
	}
	src, _ := netip.AddrFromSlice(network.NetworkFlow().Src().Raw())
	dst, _ := netip.AddrFromSlice(network.NetworkFlow().Dst().Raw())
	arrow := ""
	switch s.target.Addr().Unmap() {
	case dst:
		arrow = ">"
	case src:
		arrow = "<"
	default:
		return ""
	}
	own := src == dst // then ports and types tell
	text := ""
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.ICMPv4:
			if own && l.TypeCode.Type() == layers.ICMPv4TypeEchoReply {
				arrow = "<"
			}
			text = fmt.Sprintf("ICMP %v id %d seq %d", l.TypeCode, l.Id, l.Seq)
		case *layers.ICMPv6:
			if own && l.TypeCode.Type() == layers.ICMPv6TypeEchoReply {
				arrow = "<"
			}
			text = fmt.Sprintf("ICMPv6 %v", l.TypeCode)
		case *layers.ICMPv6Echo:
			text += fmt.Sprintf(" id %d seq %d", l.Identifier, l.SeqNumber)
		case *layers.TCP:
			if own && !s.outgoing(uint16(l.SrcPort), uint16(l.DstPort)) {
				arrow = "<"
			}
			text = fmt.Sprintf("TCP %d > %d %s seq %d ack %d", l.SrcPort, l.DstPort, flags(l), l.Seq, l.Ack)
		case *layers.UDP:
			if own && !s.outgoing(uint16(l.SrcPort), uint16(l.DstPort)) {
				arrow = "<"
			}
			text = fmt.Sprintf("UDP %d > %d", l.SrcPort, l.DstPort)
			if s.decode != nil {
				if line, ok := s.decode(l.Payload); ok {
					text += " " + line
				}
			}
		}
	}
	if text == "" {
		text = network.LayerType().String()
	}
	return fmt.Sprintf("%s [%s, %d bytes]", arrow, text, len(b))
}

func flags(t *layers.TCP) string {
	text := ""
	for _, f := range []struct {
		set  bool
		name string
	}{{t.SYN, "SYN"}, {t.ACK, "ACK"}, {t.PSH, "PSH"}, {t.FIN, "FIN"}, {t.RST, "RST"}} {
		if f.set {
			if text != "" {
				text += "+"
			}
			text += f.name
		}
	}
	return text
}
