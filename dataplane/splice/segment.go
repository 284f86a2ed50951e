package splice

import "encoding/binary"

// TCP flags (RFC 9293, 3.1).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Options are the TCP options that matter here. The zero Options are none.
type Options struct {
	MSS           uint16 // 0: absent
	Scale         uint8  // window scale, at most 14 (RFC 7323, 2.3)
	HasScale      bool   // Scale is present
	SACKPermitted bool   // RFC 2018
	Timestamps    bool   // TSVal and TSEcr are present
	TSVal, TSEcr  uint32 // RFC 7323, 3.2
}

// Segment is a TCP segment without its ports and checksum.
type Segment struct {
	Seq, Ack uint32  // sequence and acknowledgement numbers
	Flags    uint8   // FIN, SYN, RST, PSH and ACK, as in the header
	Window   uint16  // as on the wire
	Options  Options // that matter here
	Payload  []byte  // aliases the caller's buffer
}

// end is the sequence number behind the segment.
func (s *Segment) end() uint32 {
	n := s.Seq + uint32(len(s.Payload))
	if s.Flags&SYN != 0 {
		n++
	}
	if s.Flags&FIN != 0 {
		n++
	}
	return n
}

const (
	kindEnd        = 0
	kindNOP        = 1
	kindMSS        = 2
	kindScale      = 3
	kindPermitted  = 4
	kindSACK       = 5
	kindTimestamps = 8
)

// Parse reads a TCP header with its payload, up to the packet's end, and reports whether it is well formed. Unknown options are
// passed over; a broken option list ends there, as hosts do it.
//
//	| source port | destination port | seq(4) | ack(4) | offset, flags | window | checksum | urgent | options … |
func Parse(b []byte, s *Segment) bool {
	if len(b) < 20 {
		return false
	}
	head := int(b[12]>>4) * 4
	if head < 20 || head > len(b) {
		return false
	}
	*s = Segment{
		Seq: binary.BigEndian.Uint32(b[4:]), Ack: binary.BigEndian.Uint32(b[8:]),
		Flags: b[13], Window: binary.BigEndian.Uint16(b[14:]), Payload: b[head:],
	}
	s.Options.parse(b[20:head], b[13]&SYN != 0)
	return true
}

// option returns the offset and the length of the next option of b at or behind an offset, or a length of 0 where the list ends or
// is broken.
func option(b []byte, at int) (start, n int) {
	for at < len(b) && b[at] == kindNOP {
		at++
	}
	if at+2 > len(b) || b[at] == kindEnd || b[at+1] < 2 || at+int(b[at+1]) > len(b) {
		return at, 0
	}
	return at, int(b[at+1])
}

func (o *Options) parse(b []byte, syn bool) {
	for at, n := option(b, 0); n > 0; at, n = option(b, at+n) {
		kind, v := b[at], b[at+2:at+n]
		switch {
		case kind == kindMSS && len(v) == 2 && syn && o.MSS == 0:
			o.MSS = binary.BigEndian.Uint16(v)
		case kind == kindScale && len(v) == 1 && syn:
			o.HasScale, o.Scale = true, min(v[0], 14)
		case kind == kindPermitted && len(v) == 0 && syn:
			o.SACKPermitted = true
		case kind == kindTimestamps && len(v) == 8:
			o.Timestamps = true
			o.TSVal, o.TSEcr = binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
		}
	}
}

// MaxHeader is the longest header Append makes.
const MaxHeader = 20 + 20

// Append appends the segment with the given ports and a checksum of zero.
func (s *Segment) Append(b []byte, src, dst uint16) []byte {
	at := len(b)
	be := binary.BigEndian
	b = be.AppendUint16(b, src)
	b = be.AppendUint16(b, dst)
	b = be.AppendUint32(b, s.Seq)
	b = be.AppendUint32(b, s.Ack)
	b = append(b, 0, s.Flags)
	b = be.AppendUint16(b, s.Window)
	b = append(b, 0, 0, 0, 0)
	o := &s.Options
	if o.MSS != 0 {
		b = append(b, kindMSS, 4)
		b = be.AppendUint16(b, o.MSS)
	}
	switch {
	case o.SACKPermitted && o.Timestamps:
		b = append(b, kindPermitted, 2)
	case o.SACKPermitted:
		b = append(b, kindNOP, kindNOP, kindPermitted, 2)
	case o.Timestamps:
		b = append(b, kindNOP, kindNOP)
	}
	if o.Timestamps {
		b = append(b, kindTimestamps, 10)
		b = be.AppendUint32(b, o.TSVal)
		b = be.AppendUint32(b, o.TSEcr)
	}
	if o.HasScale {
		b = append(b, kindNOP, kindScale, 3, o.Scale)
	}
	b[at+12] = byte((len(b) - at) / 4 << 4)
	return append(b, s.Payload...)
}

// before reports whether a comes before b in sequence space (RFC 9293, 3.4).
func before(a, b uint32) bool { return int32(a-b) < 0 }

// later is the later of two sequence numbers.
func later(a, b uint32) uint32 {
	if before(a, b) {
		return b
	}
	return a
}
