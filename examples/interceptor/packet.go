package main

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// packet is what the program's hosts see of an IP packet.
type packet struct {
	src, dst netip.AddrPort
	tcp      bool
	syn, rst bool
	seq      uint32 // the payload: which of the flow's packets this is
}

const (
	protoTCP = 6
	protoUDP = 17
)

func (p *packet) protocol() uint8 {
	if p.tcp {
		return protoTCP
	}
	return protoUDP
}

// bytes is the whole packet, with all checksums.
func (p *packet) bytes() ([]byte, error) {
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	protocol := layers.IPProtocol(p.protocol())
	if p.src.Addr().Is4() {
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
	} else {
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
	}
	var transport gopacket.SerializableLayer
	if p.tcp {
		t := &layers.TCP{SrcPort: layers.TCPPort(p.src.Port()), DstPort: layers.TCPPort(p.dst.Port()), SYN: p.syn, RST: p.rst, ACK: !p.syn, Window: 65535}
		if err := t.SetNetworkLayerForChecksum(ip); err != nil {
			return nil, err
		}
		transport = t
	} else {
		u := &layers.UDP{SrcPort: layers.UDPPort(p.src.Port()), DstPort: layers.UDPPort(p.dst.Port())}
		if err := u.SetNetworkLayerForChecksum(ip); err != nil {
			return nil, err
		}
		transport = u
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, transport, gopacket.Payload(binary.BigEndian.AppendUint32(nil, p.seq)))
	return b.Bytes(), err
}

var errPacket = errors.New("no packet of this program")

// parse reads what bytes has written.
func parse(b []byte) (p packet, err error) {
	var src, dst netip.Addr
	var protocol uint8
	switch {
	case len(b) >= 28 && b[0] == 0x45:
		src, dst, protocol, b = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[9], b[20:]
	case len(b) >= 48 && b[0]>>4 == 6:
		src, dst, protocol, b = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), b[6], b[40:]
	default:
		return p, errPacket
	}
	p.src, p.dst = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	p.tcp = protocol == protoTCP
	payload := b[8:]
	if p.tcp {
		if len(b) < 20 {
			return p, errPacket
		}
		p.syn, p.rst, payload = b[13]&2 != 0, b[13]&4 != 0, b[20:]
	}
	if len(payload) < 4 {
		return p, errPacket
	}
	p.seq = binary.BigEndian.Uint32(payload)
	return p, nil
}
