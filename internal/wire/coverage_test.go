package wire

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// partCovered builds a packet of UDP-Lite or DCCP of which the checksum covers so much of the payload: RFC 3828 section 3.1, RFC 4340 sections 5.1 and
// 9.2. It returns the bytes that are covered, counted from the transport header.
func partCovered(r *rand.Rand, v6 bool, proto uint8, payload int) (b []byte, covered int) {
	header := 8
	if proto == ProtoDCCP {
		header = 12 + 4*r.IntN(4) // the last ones with options
	}
	src, dst := randEnd(r), randEnd(r)
	at, from := IPv4Len, 12
	if v6 {
		at, from = IPv6Len, 0
	}
	b = make([]byte, at+header+payload)
	PutHeader(b, src.Addr[from:], dst.Addr[from:], proto, 64, 0, len(b))
	t := b[at:]
	for i := range t {
		t[i] = byte(r.Uint32())
	}
	covered = len(t)
	if proto == ProtoUDPLite {
		n := 0
		if r.IntN(2) == 0 {
			n = 8 + r.IntN(payload+1)
			covered = n
		}
		binary.BigEndian.PutUint16(t[4:], uint16(n))
	} else {
		t[4], t[8] = byte(header/4), t[8]&^1
		if header >= 16 {
			t[8] |= byte(r.IntN(2))
		}
		n := r.IntN(16)
		t[5] = t[5]&0xf0 | byte(n)
		if n > 0 {
			covered = min(header+4*(n-1), len(t))
		}
	}
	binary.BigEndian.PutUint16(t[6:], slowTransport(b, at, covered))
	return b, covered
}

// slowTransport computes the checksum of a packet from its pseudo-header on, written out as bytes.
func slowTransport(b []byte, at, covered int) uint16 {
	var p []byte
	n, proto := len(b)-at, b[9]
	if b[0]>>4 == 6 {
		proto = b[6]
		p = append(p, b[8:40]...)
		p = binary.BigEndian.AppendUint32(p, uint32(n))
		p = append(p, 0, 0, 0, proto)
	} else {
		p = append(p, b[12:20]...)
		p = append(p, 0, proto, byte(n>>8), byte(n))
	}
	p = append(p, b[at:at+covered]...)
	p[len(p)-covered+6], p[len(p)-covered+7] = 0, 0
	sum := ^slowSum(p)
	if sum == 0 && proto == ProtoUDPLite {
		sum = 0xffff
	}
	return sum
}

// TestPartCoverage rewrites UDP-Lite and DCCP, whose checksums cover the addresses and ports whatever they cover of the payload, and computes the
// checksums anew.
func TestPartCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(38, 28))
	for _, proto := range []uint8{ProtoUDPLite, ProtoDCCP} {
		for i := range 20000 {
			b, covered := partCovered(r, i&1 != 0, proto, r.IntN(200))
			var v View
			require.Equal(t, OK, Parse(b, &v), "% x", b)
			require.True(t, v.Has(Ports))
			require.True(t, v.SumOK(b), "% x", b)
			if at := int(v.L4) + covered; at < len(b) {
				b[at] ^= 1 // beyond what is covered
				require.True(t, v.SumOK(b))
			}
			at := int(v.L4) + r.IntN(covered)
			if at &^= 1; at != int(v.L4)+6 && proto == ProtoUDPLite && at != int(v.L4)+4 {
				b[at] ^= 0x40
				require.False(t, v.SumOK(b), "% x", b)
				b[at] ^= 0x40
			}
			src, dst := randEnd(r), randEnd(r)
			if i%16 == 0 { // what a sum that is 0 becomes
				dst.Port = 0
				c := b[v.SumOff:]
				v.Rewrite(b, src, dst, false)
				dst.Port = binary.BigEndian.Uint16(c)
			}
			v.Rewrite(b, src, dst, false)
			require.Equal(t, src.Port, binary.BigEndian.Uint16(b[v.L4:]))
			require.Equal(t, dst.Port, binary.BigEndian.Uint16(b[v.L4+2:]))
			want, got := slowTransport(b, int(v.L4), covered), binary.BigEndian.Uint16(b[v.SumOff:])
			require.True(t, same(want, got), "%x, want %x: % x", got, want, b)
			if proto == ProtoUDPLite {
				require.NotZero(t, got)
			}
			require.True(t, v.HeaderSumOK(b))
		}
	}
}

// TestPartCoverageRefused: what no receiver takes.
func TestPartCoverageRefused(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 40))
	for _, v6 := range []bool{false, true} {
		at := map[bool]int{false: IPv4Len, true: IPv6Len}[v6]
		var v View
		b, _ := partCovered(r, v6, ProtoUDPLite, 10)
		for cover, want := range map[uint16]Status{0: OK, 1: BadTransport, 7: BadTransport, 8: OK, 18: OK, 19: BadTransport, 0xffff: BadTransport} {
			binary.BigEndian.PutUint16(b[at+4:], cover)
			require.Equal(t, want, Parse(b, &v), cover)
			require.Equal(t, OK, ParseQuoted(b, &v), "a router may have quoted less")
		}
		binary.BigEndian.PutUint32(b[at+4:], 0)
		require.Equal(t, OK, Parse(b, &v))
		require.True(t, v.Has(NoSum))
		require.False(t, v.SumOK(b), "there must be one")
		for _, n := range []int{0, 7} {
			short, _ := partCovered(r, v6, ProtoUDPLite, 0)
			require.Equal(t, BadTransport, Parse(cut(short, at+n), &v))
		}

		b, _ = partCovered(r, v6, ProtoDCCP, 30)
		b[at+8] &^= 1
		for words, want := range map[byte]Status{2: BadTransport, 3: OK, 10: OK, 255: BadTransport} {
			b[at+4] = words
			require.Equal(t, want, Parse(b, &v), words)
		}
		b[at+4], b[at+8] = 3, b[at+8]|1
		require.Equal(t, BadTransport, Parse(b, &v), "no room for the long sequence number")
		require.Equal(t, BadTransport, Parse(cut(b, at+11), &v))
		b[at+4] = 5
		require.Equal(t, OK, ParseQuoted(b[:at+8], &v))
		require.EqualValues(t, at+6, v.SumOff)
		require.True(t, v.Has(Ports))
	}
	for _, proto := range []uint8{ProtoUDPLite, ProtoDCCP} {
		for _, v4 := range []bool{false, true} {
			b := BuildProbe(proto, *randEnd(r), End{Addr: [16]byte{15: 9}, Port: 80}, v4)
			var v View
			require.Equal(t, OK, Parse(b, &v), fmt.Sprint(proto))
			require.True(t, v.SumOK(b))
			require.EqualValues(t, 80, v.DstPort)
			require.False(t, v.Has(NoSum))
		}
	}
}

// cut shortens a packet to n bytes by its own account, too.
func cut(b []byte, n int) []byte {
	b = b[:n:n]
	if b[0]>>4 == 4 {
		binary.BigEndian.PutUint16(b[2:], uint16(n))
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(n-IPv6Len))
	}
	return b
}
