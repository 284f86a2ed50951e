package wire

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

type layer struct {
	P              string
	Embedded       bool
	Src, Dst       string
	Proto          json.RawMessage
	Nxt            int
	Fragoff        *int `json:"frag_off"`
	MF             bool
	Len, Hlen      int
	ID             json.RawMessage
	FragID         uint32 `json:"frag_id"`
	Sp, Dp         uint16
	Seq, Ack       uint32
	Flags          string
	MSS            *uint16 `json:"mss"`
	Ck             string
	Type           json.RawMessage
	Code           int
	Ident          *uint16
	MTU            uint32
	Ext            []string
	TTL, Hlim, Tos int
	TC             int
	Segleft        int `json:"rh_segleft"`
	Opts           string
}

type row struct {
	File             string
	N, Len, Cap      int
	Layers           []layer
	Malformed, Short bool
}

func expected(t testing.TB) []row {
	f, err := os.Open(testenv.SharedFile(t, "expected/packets.jsonl"))
	require.NoError(t, err)
	defer f.Close()
	var rows []row
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		var r row
		require.NoError(t, json.Unmarshal(s.Bytes(), &r))
		rows = append(rows, r)
	}
	require.NoError(t, s.Err())
	return rows
}

// frames reads a capture whole.
func frames(t testing.TB, path string) (link layers.LinkType, out [][]byte) {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		in, err = gzip.NewReader(f)
		require.NoError(t, err)
	}
	br := bufio.NewReader(in)
	magic, err := br.Peek(4)
	require.NoError(t, err)
	var src gopacket.PacketDataSource
	if binary.BigEndian.Uint32(magic) == 0x0a0d0d0a {
		r, err := pcapgo.NewNgReader(br, pcapgo.DefaultNgReaderOptions)
		require.NoError(t, err)
		src, link = r, r.LinkType()
	} else {
		r, err := pcapgo.NewReader(br)
		require.NoError(t, err)
		r.SetSnaplen(1 << 20)
		src, link = r, r.LinkType()
	}
	for {
		b, _, err := src.ReadPacketData()
		if err != nil {
			require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%s: %v", path, err)
			return link, out
		}
		out = append(out, b)
	}
}

// packet strips the link layer, where there is an IP packet directly behind it.
func packet(link layers.LinkType, b []byte) (p []byte, ok bool) {
	switch link {
	case layers.LinkTypeEthernet:
		f, s := ParseEthernet(b)
		return b[min(f.L3, len(b)):], s == OK && (f.Type == EtherIPv4 || f.Type == EtherIPv6)
	case layers.LinkTypeRaw, 12, 14, 228, 229:
		return b, len(b) > 0
	case layers.LinkTypeLinuxSLL:
		if len(b) < 16 {
			return nil, false
		}
		typ := binary.BigEndian.Uint16(b[14:])
		return b[16:], typ == EtherIPv4 || typ == EtherIPv6
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		if len(b) < 5 {
			return nil, false
		}
		return b[4:], b[4]>>4 == 4 || b[4]>>4 == 6
	}
	return nil, false
}

func addr(b []byte) string {
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// TestCaptures compares every packet of every capture with the dissector's table.
func TestCaptures(t *testing.T) {
	rows := expected(t)
	dir := testenv.Shared(t)
	compared, sums, quotes := 0, 0, 0
	var link layers.LinkType
	var file string
	var fs [][]byte
	for _, r := range rows {
		if r.File != file {
			file = r.File
			link, fs = frames(t, filepath.Join(dir, filepath.FromSlash(r.File)))
		}
		if r.N > len(fs) {
			continue // cut short at the end of the file
		}
		p, ok := packet(link, fs[r.N-1])
		if !ok {
			continue
		}
		var ip *layer
		var rest []layer
		for i := range r.Layers {
			if l := &r.Layers[i]; l.P == "ip" || l.P == "ipv6" {
				ip, rest = l, r.Layers[i+1:]
				break
			}
		}
		if ip == nil {
			continue
		}
		at := r.File + ":" + strconv.Itoa(r.N)
		var v View
		s := Parse(p, &v)
		if s != OK {
			// Refused only for a reason: cut by the capture, or wrong by the dissector's judgement
			// or by a rule that it does not enforce.
			if s == Short {
				require.True(t, r.Cap < r.Len || r.Malformed || r.Short || ip.Src == "" || ip.Len > len(p), at)
			} else if !r.Malformed && ip.Src != "" {
				require.Equal(t, strictlyRefused[filepath.Base(r.File)], s, at)
			}
			continue
		}
		compared++
		compareIP(t, at, p, &v, ip)
		if v.Has(LaterFrag) || len(rest) == 0 {
			continue
		}
		quotes += compareUpper(t, at, p, &v, rest, &sums)
	}
	t.Logf("%d packets, %d transport checksums, %d quotations", compared, sums, quotes)
	require.Greater(t, compared, 2500)
	require.Greater(t, sums, 900)
	require.Greater(t, quotes, 40)
}

// What the dissector lets pass and Parse refuses: fragments that no receiver could put
// together, headers out of order, several fragment headers.
var strictlyRefused = map[string]Status{
	"zeek_ipv4_fragmented-1.pcap":                                                   BadFragment,
	"zeek_ipv4_fragmented-2.pcap":                                                   BadFragment,
	"sv_defrag_bug-6887-defrag-ipv4-tcp-syn_frag-ip-tcp-syn.pcap":                   TinyFragment,
	"sv_defrag_bug-6887-defrag-eth-vlan-ipv4-tcp-syn_frag-eth-vlan-ip-tcp-syn.pcap": TinyFragment,
	"sv_ipv6-evasion_ipv6-malformed-fragments-10_frag-10.pcap":                      BadExt,
	"sv_ipv6-evasion_ipv6-malformed-fragments-12_frag-12.pcap":                      BadExt,
	"sv_ipv6-evasion_ipv6-malformed-fragments-15_frag-15.pcap":                      BadFragment,
	"sv_ipv6-evasion_ipv6-malformed-fragments-22_frag-22.pcap":                      BadFragment,
	"sv_ipv6-evasion_ipv6-malformed-fragments-35_frag-35.pcap":                      BadExt,
	"pcpp_ipv4-malformed.pcap":                                                      BadLength,
	"snabb_intel_mp_broadcast.pcap":                                                 BadFragment,
	"libpcap_filter_ipv6_ext_headers.pcap":                                          BadExt,
}

func compareIP(t *testing.T, at string, p []byte, v *View, ip *layer) {
	require.Equal(t, addr(must(netip.ParseAddr(ip.Src)).AsSlice()), addr(v.Src(p)), at)
	require.Equal(t, addr(must(netip.ParseAddr(ip.Dst)).AsSlice()), addr(v.Dst(p)), at)
	if ip.P == "ip" {
		require.EqualValues(t, 4, v.Version, at)
		require.Equal(t, string(ip.Proto), strconv.Itoa(int(v.Proto)), at)
		require.EqualValues(t, ip.Len, v.End, at)
		require.EqualValues(t, ip.Hlen, v.L4, at)
		require.EqualValues(t, ip.TTL, v.TTL(p), at)
		require.EqualValues(t, ip.Tos, v.TOS(p), at)
		if ip.Ck == "good" || ip.Ck == "bad" {
			require.Equal(t, ip.Ck == "good", v.HeaderSumOK(p), at)
		}
	} else {
		require.EqualValues(t, 6, v.Version, at)
		require.EqualValues(t, ip.Hlim, v.TTL(p), at)
		require.EqualValues(t, ip.TC, v.TOS(p), at)
		require.Equal(t, ip.Segleft > 0 || v.homeAt != 0, v.Has(Routed), at)
	}
	if ip.Fragoff != nil {
		require.EqualValues(t, *ip.Fragoff, v.FragOff, at)
		require.Equal(t, ip.MF, v.Has(MoreFrags), at)
		require.Equal(t, ip.MF || *ip.Fragoff > 0, v.Has(Fragment), at)
		if ip.P == "ipv6" {
			require.Equal(t, ip.FragID, v.FragID, at)
		}
	}
}

func compareUpper(t *testing.T, at string, p []byte, v *View, rest []layer, sums *int) (quotes int) {
	l := rest[0]
	switch l.P {
	case "tcp", "udp":
		require.Equal(t, map[string]uint8{"tcp": ProtoTCP, "udp": ProtoUDP}[l.P], v.Proto, at)
		require.Equal(t, [2]uint16{l.Sp, l.Dp}, [2]uint16{v.SrcPort, v.DstPort}, at)
		if l.P == "tcp" && l.Hlen > 0 {
			flags, err := strconv.ParseUint(strings.TrimPrefix(l.Flags, "0x"), 16, 16)
			require.NoError(t, err)
			require.EqualValues(t, uint8(flags), v.TCPFlags, at)
			seq, ack := v.Seq(p)
			require.Equal(t, [2]uint32{l.Seq, l.Ack}, [2]uint32{seq, ack}, at)
			mss, ok := v.MSS(p)
			if l.MSS != nil && ok {
				require.Equal(t, *l.MSS, mss, at)
			}
			require.False(t, ok && l.MSS == nil, at)
		}
	case "icmp", "icmpv6":
		var typ int
		require.NoError(t, json.Unmarshal(l.Type, &typ))
		require.EqualValues(t, typ, v.Type, at)
		require.EqualValues(t, l.Code, v.Code, at)
		if l.Ident != nil && v.IsPing() {
			require.Equal(t, *l.Ident, v.SrcPort|v.DstPort, at)
		}
	}
	if l.Ck == "good" || l.Ck == "bad" {
		if _, ok := v.TransportSum(p); ok {
			*sums++
			require.Equal(t, l.Ck == "good", v.SumOK(p), at)
		}
	}
	if !v.Has(ICMPError) {
		return 0
	}
	for i := 1; i < len(rest); i++ {
		q := rest[i]
		if !q.Embedded || q.P != "ip" && q.P != "ipv6" {
			continue
		}
		if l.MTU != 0 {
			require.Equal(t, l.MTU, v.MTU(p), at)
		}
		inner := v.Quote(p)
		var w View
		if s := ParseQuoted(inner, &w); s != OK {
			return 0
		}
		require.Equal(t, addr(must(netip.ParseAddr(q.Src)).AsSlice()), addr(w.Src(inner)), at)
		require.Equal(t, addr(must(netip.ParseAddr(q.Dst)).AsSlice()), addr(w.Dst(inner)), at)
		if i+1 < len(rest) && (rest[i+1].P == "tcp" || rest[i+1].P == "udp") {
			require.Equal(t, [2]uint16{rest[i+1].Sp, rest[i+1].Dp}, [2]uint16{w.SrcPort, w.DstPort}, at)
		}
		return 1
	}
	return 0
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
