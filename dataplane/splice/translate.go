package splice

import "encoding/binary"

// Translation maps the numbers of a spliced connection. The client's sequence numbers are the server's, so only those of the server
// differ; see [ShiftClient] for those of a connection that has been with another server in between. The zero Translation changes nothing. It is a plain value.
type Translation struct {
	Seq        uint32 // what the server's sequence numbers lack to those the client knows
	TS         uint32 // the same for timestamps
	First      uint32 // the server's first timestamp
	Timestamps bool   // the connection has timestamps
	Shift      int8   // the server's window scale less the one promised to the client
}

// A Change is told of every word of a TCP header that changes, so that checksums can be updated.
type Change interface {
	// Long is a 32-bit word at an even offset.
	Long(from, to uint32)
	// LongOdd is one at an odd offset: its bytes belong to other halves of the sum's words.
	LongOdd(from, to uint32)
	// Word is a 16-bit word.
	Word(from, to uint16)
}

// head returns the TCP header of a segment, which Parse accepted, with its options.
func head(segment []byte) []byte { return segment[:min(len(segment), max(20, int(segment[12]>>4)*4))] }

// ToClient translates a TCP segment of the server's in place.
func (t *Translation) ToClient(segment []byte, ch Change) {
	header := head(segment)
	put(header, 4, t.Seq, ch)
	if t.Shift != 0 && header[13]&SYN == 0 {
		old := binary.BigEndian.Uint16(header[14:])
		w := uint32(old)
		if t.Shift > 0 {
			w = min(w<<t.Shift, 0xffff)
		} else {
			w >>= -t.Shift
			if old != 0 {
				w = max(w, 1) // a window that is open must not look closed
			}
		}
		binary.BigEndian.PutUint16(header[14:], uint16(w))
		ch.Word(old, uint16(w))
	}
	if t.Timestamps && t.TS != 0 {
		for at, n := option(header, 20); n > 0; at, n = option(header, at+n) {
			if header[at] == kindTimestamps && n == 10 {
				put(header, at+2, t.TS, ch) // the server's own
				break
			}
		}
	}
}

// ToServer translates a TCP segment of the client's in place.
func (t *Translation) ToServer(segment []byte, ch Change) {
	header := head(segment)
	if header[13]&ACK != 0 {
		put(header, 8, -t.Seq, ch)
	}
	if t.Seq == 0 && t.TS == 0 {
		return
	}
	for at, n := option(header, 20); n > 0; at, n = option(header, at+n) {
		switch {
		case header[at] == kindTimestamps && n == 10 && t.Timestamps && header[13]&ACK != 0:
			t.echo(header, at+6, ch)
		case header[at] == kindSACK && n >= 10 && (n-2)%8 == 0:
			for e := 2; e < n; e += 4 {
				put(header, at+e, -t.Seq, ch)
			}
		}
	}
}

// ShiftClient translates the client's numbers in a segment to or from the server, in place, where the server knows them by d more. It is for connections
// that were parked, beside their Translation.
func ShiftClient(segment []byte, to Side, d uint32, ch Change) {
	header := head(segment)
	if to == Server {
		put(header, 4, d, ch)
		return
	}
	if header[13]&ACK == 0 {
		return
	}
	put(header, 8, -d, ch)
	for at, n := option(header, 20); n > 0; at, n = option(header, at+n) {
		if header[at] == kindSACK && n >= 10 && (n-2)%8 == 0 {
			for e := 2; e < n; e += 4 {
				put(header, at+e, -d, ch) // RFC 2018, 3
			}
		}
	}
}

// LimitWindow lowers the window of a segment, in place, to what its receiver may see.
func LimitWindow(segment []byte, most uint16, ch Change) {
	if old := binary.BigEndian.Uint16(segment[14:]); old > most {
		binary.BigEndian.PutUint16(segment[14:], most)
		ch.Word(old, most)
	}
}

// earlier bounds how old an echo of the balancer's own timestamps may be, in milliseconds.
const earlier = 1 << 17

// echo translates the echo of a timestamp. One of the balancer's, from before the server was there, becomes the server's first: it would
// tell the server of a round trip as long as the client took to send its request.
func (t *Translation) echo(header []byte, at int, ch Change) {
	d := -t.TS
	if age := t.First - (binary.BigEndian.Uint32(header[at:]) + d); age < earlier {
		d += age
	}
	put(header, at, d, ch)
}

// put adds d to the 32-bit word at an offset of the header.
func put(header []byte, at int, d uint32, ch Change) {
	if d == 0 {
		return
	}
	old := binary.BigEndian.Uint32(header[at:])
	binary.BigEndian.PutUint32(header[at:], old+d)
	if at%2 == 0 {
		ch.Long(old, old+d)
	} else {
		ch.LongOdd(old, old+d)
	}
}
