package wire

import "encoding/binary"

// TCP option kinds.
const (
	optEnd = 0
	optNop = 1
	optMSS = 2
)

// Seq returns sequence and acknowledgement number of a TCP packet.
func (v *View) Seq(b []byte) (seq, ack uint32) {
	t := b[v.L4 : v.L4+12]
	return binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:])
}

// SegLen returns the sequence space a TCP segment takes: its payload, and one each for SYN
// and FIN.
func (v *View) SegLen() uint32 {
	n := v.End - v.Payload
	if v.TCPFlags&SYN != 0 {
		n++
	}
	if v.TCPFlags&FIN != 0 {
		n++
	}
	return n
}

// MSSResult says what a walk over the options of a SYN found.
type MSSResult uint8

// What happened to the MSS option.
const (
	MSSAbsent    MSSResult = iota
	MSSKept                // it was low enough
	MSSLowered             // it was changed
	MSSMalformed           // the options are broken; nothing was changed
)

// ClampMSS lowers the MSS option of a SYN or SYN-ACK to at most limit. It never raises one and
// adds none where there is none (RFC 9293 section 3.7.1). An MSS of zero,
// which would stall the connection, becomes limit or the default of the family, the lower of
// the two. Broken options leave the packet as it is.
//
//	+--------+--------+---------+--------+
//	|00000010|00000100|   max seg size   |
//	+--------+--------+---------+--------+
func (v *View) ClampMSS(b []byte, limit uint16, partial bool) MSSResult {
	if v.Proto != ProtoTCP || v.TCPFlags&SYN == 0 || v.Payload < v.L4+20 {
		return MSSAbsent
	}
	o := b[v.L4+20 : v.Payload]
	if !optionsOK(o) {
		return MSSMalformed
	}
	result := MSSAbsent
	var d Diff
	for i := 0; i < len(o) && o[i] != optEnd; {
		if o[i] == optNop {
			i++
			continue
		}
		if o[i] == optMSS {
			have, want := binary.BigEndian.Uint16(o[i+2:]), limit
			if have == 0 {
				want = min(limit, v.defaultMSS())
			}
			if have > want || have == 0 {
				binary.BigEndian.PutUint16(o[i+2:], want)
				if i%2 != 0 { // the value straddles two words of the sum
					have, want = have<<8|have>>8, want<<8|want>>8
				}
				d = d.Word(have, want)
				result = MSSLowered
			} else if result == MSSAbsent {
				result = MSSKept
			}
		}
		i += int(o[i+1])
	}
	if result == MSSLowered && !partial {
		h := b[v.SumOff : v.SumOff+2]
		binary.BigEndian.PutUint16(h, d.Apply(binary.BigEndian.Uint16(h)))
	}
	return result
}

func (v *View) defaultMSS() uint16 {
	if v.Version == 6 {
		return 1220
	}
	return 536
}

// MSS returns the value of the first MSS option of a SYN.
func (v *View) MSS(b []byte) (mss uint16, ok bool) {
	if v.Proto != ProtoTCP || v.TCPFlags&SYN == 0 || v.Payload < v.L4+20 {
		return 0, false
	}
	o := b[v.L4+20 : v.Payload]
	if !optionsOK(o) {
		return 0, false
	}
	for i := 0; i < len(o) && o[i] != optEnd; {
		switch o[i] {
		case optNop:
			i++
			continue
		case optMSS:
			return binary.BigEndian.Uint16(o[i+2:]), true
		}
		i += int(o[i+1])
	}
	return 0, false
}

// optionsOK reports whether every option up to the end lies within o, and every MSS
// option has its length of 4.
func optionsOK(o []byte) bool {
	for i := 0; i < len(o); {
		switch o[i] {
		case optEnd:
			return true
		case optNop:
			i++
			continue
		}
		if i+1 >= len(o) {
			return false
		}
		n := int(o[i+1])
		if n < 2 || i+n > len(o) || o[i] == optMSS && n != 4 {
			return false
		}
		i += n
	}
	return true
}
