package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// sendOffload sends a packet whose checksum is left to be completed, with a segment size.
func (p *testPlane) sendOffload(b []byte, gsoType uint8, gsoSize uint16) (Verdict, [][]byte) {
	p.t.Helper()
	buf := append(make([]byte, ReadOffset), b...)
	var v wire.View
	require.Equal(p.t, wire.OK, wire.Parse(b, &v))
	o := offload{flags: virtioNeedsCsum, gsoType: gsoType, hdrLen: uint16(v.Payload), gsoSize: gsoSize, csumStart: uint16(v.L4), csumAt: uint16(v.SumOff - v.L4)}
	o.write(buf[ReadOffset-virtioLen:])
	if v.Proto == wire.ProtoICMP { // no pseudo-header
		binary.BigEndian.PutUint16(buf[ReadOffset+int(v.SumOff):], 0)
	} else {
		binary.BigEndian.PutUint16(buf[ReadOffset+int(v.SumOff):], wire.PseudoSum(v.Src(b), v.Dst(b), v.Proto, int(v.End-v.L4)).Fold())
	}
	verdicts := make([]Verdict, 1)
	var out [][]byte
	for _, x := range p.w.Process(p.now, [][]byte{buf}, []int{len(b)}, ReadOffset, verdicts) {
		out = append(out, bytes.Clone(x))
	}
	return verdicts[0], out
}

// complete does what the hardware would: it fills in the checksum.
func complete(t *testing.T, out []byte) []byte {
	o := readOffload(out[Headroom-virtioLen:])
	b := bytes.Clone(out[Headroom:])
	if o.flags&virtioNeedsCsum == 0 {
		return b
	}
	sum := wire.Sum(0).AddBytes(b[o.csumStart:]).Checksum()
	if sum == 0 && o.csumAt == 6 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[o.csumStart+o.csumAt:], sum)
	return b
}

func TestSuperPacketsStayWhole(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		node := p.open(ap(fam.client, 40000))
		p.w = p.NewWorker(Link{Virtio: true})
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		gso := uint8(gsoTCPv4)
		if !fam.vip.Is4() {
			gso = gsoTCPv6
		}
		big := strings.Repeat("0123456789", 6000)
		v, out := p.sendOffload(tcp(client, vip, "AP", 101, 501, big), gso, 1448)
		require.Equal(t, Forwarded, v)
		require.Len(t, out, 1)
		o := readOffload(out[0][Headroom-virtioLen:])
		require.Equal(t, offload{virtioNeedsCsum, gso, o.hdrLen, 1448, o.csumStart, 16}, o)
		p.wellFormed(complete(t, out[0]), client, node)
		v, out = p.sendOffload(tcp(node, client, "AP", 501, 101, big), gso, 1448)
		require.Equal(t, Forwarded, v)
		p.wellFormed(complete(t, out[0]), vip, client)
		// UDP, with a partial checksum and as a super-packet.
		_, out = p.sendOffload(udp(client, vip, big), gsoUDPL4, 1200)
		f, _ := parseFlow(out[0][Headroom:])
		p.wellFormed(complete(t, out[0]), client, f.Dst)
		// The reset of a super-packet's connection is a plain packet, and acknowledges all of it.
		v, out = p.sendOffload(tcp(ap(fam.client2, 1), vip, "P", 101, 0, big), gso, 1448)
		require.Equal(t, Answered, v)
		require.Equal(t, make([]byte, virtioLen), out[0][Headroom-virtioLen:Headroom])
		_, w := parseFlow(out[0][Headroom:])
		_, ack := w.Seq(out[0][Headroom:])
		require.EqualValues(t, 101+len(big), ack)
		// An echo request with a partial checksum (ICMPv6).
		v, out = p.sendOffload(echo(fam.client, fam.vip, false, 7, 1, "ping"), 0, 0)
		require.Equal(t, Answered, v)
		p.wellFormed(complete(t, out[0]), ap(fam.vip, 0), ap(fam.client, 0))
	})
}

// SCTP of processes on this host comes without its CRC, and with a header that asks for a sum in its place.
func TestUnfinishedSCTP(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, mode := range []Forward{NAT, Tunnelled} {
			p := newPlane(t, fam, func(c *Config, s *Service) { s.Forward, c.Addrs = mode, []netip.Addr{fam.router} })
			p.w = p.NewWorker(Link{Virtio: true})
			for i, to := range []netip.AddrPort{ap(fam.vip, 80), ap(fam.elsewhere, 80)} {
				b := wire.BuildProbe(wire.ProtoSCTP, endOf(ap(fam.client, 40000)), endOf(to), fam.vip.Is4())
				_, v := parseFlow(b)
				buf := append(make([]byte, ReadOffset), b...)
				(&offload{flags: virtioNeedsCsum, csumStart: uint16(v.L4), csumAt: 8}).write(buf[ReadOffset-virtioLen:])
				verdicts := make([]Verdict, 1)
				out := p.w.Process(p.now, [][]byte{buf}, []int{len(b)}, ReadOffset, verdicts)
				require.Equal(t, []Verdict{Forwarded, Passed}[i], verdicts[0])
				require.Len(t, out, 1)
				require.Equal(t, make([]byte, virtioLen), out[0][Headroom-virtioLen:Headroom])
				got := out[0][Headroom:]
				if i == 0 && mode == Tunnelled {
					got = got[len(got)-len(b):]
				}
				_, v = parseFlow(got)
				want := bytes.Clone(got)
				v.FixSCTP(want, castagnoli)
				require.Equal(t, want, got, "%v to %v", mode, to)
				require.NotZero(t, binary.LittleEndian.Uint32(got[v.L4+8:]))
			}
		}
	})
}

func TestSuperPacketsEqualTheirParts(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		node := p.open(client)
		var parts []byte
		for i := range 5 {
			out := p.forwarded(tcp(client, vip, "A", uint32(101+8*i), 501, "01234567"), client, node)
			parts = append(parts, out[len(out)-8:]...)
		}
		whole := p.forwarded(tcp(client, vip, "A", 101, 501, strings.Repeat("01234567", 5)), client, node)
		require.Equal(t, parts, whole[len(whole)-40:])
	})
}

func TestZeroChecksums(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		b := udp(client, vip, "x")
		at := 26
		if !fam.vip.Is4() {
			at = 46
		}
		binary.BigEndian.PutUint16(b[at:], 0)
		v, out := p.send(b)
		if !fam.vip.Is4() {
			require.Equal(t, Dropped, v)
			require.EqualValues(t, 1, p.drops()[ZeroChecksum])
			return
		}
		require.Equal(t, Forwarded, v)
		require.Zero(t, binary.BigEndian.Uint16(out[at:]))
	})
}

func TestExtensionHeaders(t *testing.T) {
	fam := families2()[1]
	p := newPlane(t, fam)
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	insert := func(b []byte, next uint8, ext ...byte) []byte {
		out := append(append(append([]byte{}, b[:40]...), ext...), b[40:]...)
		out[40] = b[6]
		out[6] = next
		binary.BigEndian.PutUint16(out[4:], uint16(len(out)-40))
		return out
	}
	syn := tcp(client, vip, "S", 1, 0, "")
	v, out := p.send(insert(insert(syn, 60, 0, 0, 1, 4, 0, 0, 0, 0), 0, 0, 0, 5, 2, 0, 0, 1, 0))
	require.Equal(t, Forwarded, v, p.drops())
	f, _ := parseFlow(out)
	p.wellFormed(out, client, f.Dst)
	// An atomic fragment is a whole packet.
	v, out = p.send(insert(udp(client, vip, "x"), 44, 0, 0, 0, 0, 0, 0, 0, 9))
	require.Equal(t, Forwarded, v)
	f, _ = parseFlow(out)
	p.wellFormed(out, client, f.Dst)
	// With segments left the destination is not the last one.
	rh := append([]byte{0, 2, 0, 1, 0, 0, 0, 0}, fam.elsewhere.AsSlice()...)
	v, _ = p.send(insert(syn, 43, rh...))
	require.Equal(t, Dropped, v)
	v, _ = p.send(insert(syn, 51, make([]byte, 16)...))
	require.Equal(t, Dropped, v, "the second byte says 8 bytes, the rest is no TCP header")
	ah := make([]byte, 16)
	ah[1] = 2
	v, _ = p.send(insert(syn, 51, ah...))
	require.Equal(t, Dropped, v)
	require.EqualValues(t, 1, p.drops()[SourceRouted])
	require.EqualValues(t, 1, p.drops()[Authentic])
}

func TestSCTPAndOthers(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		b := wire.BuildProbe(wire.ProtoSCTP, endOf(client), endOf(vip), fam.vip.Is4())
		v, out := p.send(b)
		require.Equal(t, Forwarded, v)
		f, w := parseFlow(out)
		require.EqualValues(t, 8080, f.Dst.Port())
		c := bytes.Clone(out)
		w.FixSCTP(c, castagnoli)
		require.Equal(t, c, out)
		// Any protocol by address.
		require.NoError(t, p.Apply(table(t, rule("all", fam.vip.String(), p.svc))))
		v, out = p.send(wire.BuildProbe(99, endOf(client), endOf(vip), fam.vip.Is4()))
		require.Equal(t, Forwarded, v)
		f, _ = parseFlow(out)
		back := wire.BuildProbe(99, endOf(ap(f.Dst.Addr(), 0)), endOf(client), fam.vip.Is4())
		p.forwarded(back, ap(fam.vip, 0), ap(fam.client, 0))
	})
}
