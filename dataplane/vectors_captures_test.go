package dataplane

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// vectorFiles says which tests use what lies in the folder of packets beside the captures, which all are sent through a Plane by
// TestCapturesThroughThePlane, and by TestTranslationsOfCaptures where Wireshark's dissector says what they are.
var vectorFiles = map[string]string{
	"snabb_lwaftr_pairs.jsonl": "TestVectorsLwaftr", "copyleft/katran_vectors.jsonl": "TestVectorsKatran", "copyleft/katran_config.json": "TestVectorsKatran",
	"copyleft/tcprewrite_pairs.json": "TestVectorsTcprewrite",
}

func TestEveryVectorFileIsUsed(t *testing.T) {
	root := filepath.Join(testenv.Shared(t), "packets")
	dissected := map[string]bool{}
	for _, r := range jsonLines[capturedRow](t, "expected/packets.jsonl") {
		dissected[r.File] = true
	}
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		if filepath.Ext(name) == ".pcap" {
			require.True(t, dissected["packets/"+filepath.ToSlash(name)], "%s: no expected values", name)
		} else {
			require.NotEmpty(t, vectorFiles[filepath.ToSlash(name)], "%s is used by no test", name)
		}
		return nil
	}))
}

// capturedRow is what Wireshark's dissector says of a packet, as far as it matters here.
type capturedRow struct {
	File             string
	N, Len, Cap      int
	Malformed, Short bool
	Layers           []struct {
		P, Src, Dst, Ck string
		Embedded        bool
		Sp, Dp          uint16
	}
}

// packetsOf returns the IP packets of a capture by the numbers of their frames.
func packetsOf(t *testing.T, file string) map[int][]byte {
	f, err := os.Open(filepath.Join(testenv.Shared(t), filepath.FromSlash(file)))
	require.NoError(t, err)
	defer f.Close()
	var r interface {
		gopacket.PacketDataSource
		LinkType() layers.LinkType
	}
	if plain, err := pcapgo.NewReader(f); err == nil {
		plain.SetSnaplen(1 << 20)
		r = plain
	} else {
		_, err = f.Seek(0, io.SeekStart)
		require.NoError(t, err)
		r, err = pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
		require.NoError(t, err, file)
	}
	out := map[int][]byte{}
	for n := 1; ; n++ {
		b, _, err := r.ReadPacketData()
		if err != nil {
			require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%s: %v", file, err)
			return out
		}
		switch r.LinkType() {
		case layers.LinkTypeEthernet:
			if p := packetOf(b); p != nil {
				out[n] = p
			}
		case layers.LinkTypeRaw, 12:
			out[n] = b
		}
	}
}

// everywhere has every address of both families for a virtual one, and one node for each that takes all ports.
func everywhere(t *testing.T) *testPlane {
	ids := new(steering.IDs)
	return newPlane(t, families2()[0], func(c *Config, s *Service) {
		c.MaxSessions = 100000
		age := clienttable.Ageing{Idle: time.Hour, SYN: time.Hour} // Session goes by the clock, and thousands of packets may take longer than a SYN's session lives
		four := &Service{Name: "four", Ageing: age, MidStream: Reselect, Pool: mustPool(t, ids, steering.Maglev, steering.Node{Name: "four", Addr: ap(netip.MustParseAddr("203.0.113.77"), 0)})}
		six := &Service{Name: "six", Ageing: age, MidStream: Reselect, Pool: mustPool(t, ids, steering.Maglev, steering.Node{Name: "six", Addr: ap(netip.MustParseAddr("2001:db8:ffff::77"), 0)})}
		c.Policies = table(t, rule("four", "0.0.0.0/0", four), rule("six", "::/0", six))
	})
}

// TestTranslationsOfCaptures sends every packet of every capture to a node, and holds what comes out against what Wireshark's dissector says of what went
// in: the same source and ports, and checksums that are right exactly where they were.
func TestTranslationsOfCaptures(t *testing.T) {
	p := everywhere(t)
	nodes := map[uint8]netip.Addr{4: netip.MustParseAddr("203.0.113.77"), 6: netip.MustParseAddr("2001:db8:ffff::77")}
	var file string
	var packets map[int][]byte
	compared := map[string]int{}
	dropped := map[Reason]int{}
	for _, r := range jsonLines[capturedRow](t, "expected/packets.jsonl") {
		if r.File != file {
			file, packets = r.File, packetsOf(t, r.File)
		}
		in := packets[r.N]
		i := slices.IndexFunc(r.Layers, func(l struct {
			P, Src, Dst, Ck string
			Embedded        bool
			Sp, Dp          uint16
		}) bool {
			return l.P == "ip" || l.P == "ipv6"
		})
		if in == nil || i < 0 || r.Malformed || r.Short || r.Cap < r.Len || len(r.Layers) <= i+1 {
			continue
		}
		ip, upper := r.Layers[i], r.Layers[i+1]
		var v wire.View
		if upper.P != "tcp" && upper.P != "udp" || wire.Parse(in, &v) != wire.OK || v.Has(wire.Fragment) {
			continue
		}
		before := p.drops()
		verdict, out := p.send(in)
		if verdict != Forwarded {
			for reason, n := range p.drops() {
				if n != before[reason] {
					dropped[reason]++
				}
			}
			continue
		}
		f, w := parseFlow(out)
		require.Equal(t, netip.MustParseAddr(ip.Src), f.Src.Addr(), "%s: %d", r.File, r.N)
		require.Equal(t, nodes[w.Version], f.Dst.Addr(), "%s: %d", r.File, r.N)
		require.Equal(t, upper.Dp, f.Dst.Port(), "%s: %d", r.File, r.N)
		if f.Src.Port() != upper.Sp { // the node would not tell the client's connections with two of the addresses apart
			k := flowOf(in, &v)
			s, ok := p.Session(v.Proto, k.Src(), k.Dst())
			require.True(t, ok)
			require.Equal(t, s.Local, f.Src, "%s: %d", r.File, r.N)
		}
		require.Equal(t, v.TTL(in), w.TTL(out), "%s: %d", r.File, r.N)
		require.Equal(t, in[v.Payload:v.End], out[w.Payload:], "%s: %d", r.File, r.N)
		if ip.Ck == "good" || ip.Ck == "bad" {
			require.Equal(t, ip.Ck == "good", w.HeaderSumOK(out), "%s: %d", r.File, r.N)
		}
		switch upper.Ck {
		case "good", "bad":
			require.Equal(t, upper.Ck == "good", w.SumOK(out), "%s: %d", r.File, r.N)
		case "absent":
			require.True(t, w.Has(wire.NoSum), "%s: %d", r.File, r.N)
		}
		compared[upper.P+" "+upper.Ck]++
	}
	t.Log(compared, dropped)
	require.Greater(t, compared["tcp good"], 1000)
	require.Greater(t, compared["tcp bad"], 50)
	require.Greater(t, compared["udp good"], 150)
	require.Greater(t, compared["udp absent"], 10)
	for reason := range dropped {
		require.Contains(t, []Reason{NoSession, BadSource, SourceRouted, ZeroChecksum, Authentic, TTLExpired}, reason)
	}
}

// TestReassembledCaptures sends the fragments of every datagram that Wireshark put together to a node, in a tunnel, which leaves them as they are, and puts what
// comes out together: the same bytes. Datagrams whose fragments overlap, or that no receiver could put together, do not come out whole.
func TestReassembledCaptures(t *testing.T) {
	type row struct {
		File          string
		Last          int `json:"last_frame"`
		Ver           int
		Overlap       bool
		TooLong       bool   `json:"too_long"`
		MultipleTails bool   `json:"multiple_tails"`
		Sum           string `json:"data_sha256"`
	}
	whole, refused, strict := 0, 0, 0
	for _, r := range jsonLines[row](t, "expected/reassembly.jsonl") {
		packets := packetsOf(t, r.File)
		fam := families2()[map[int]int{4: 0, 6: 1}[r.Ver]]
		p := newPlane(t, fam, func(c *Config, s *Service) {
			s.Forward, s.MidStream, s.MTU, c.Addrs = Tunnelled, Reselect, 65535, own()
			s.Pool = mustPool(t, new(steering.IDs), steering.Maglev, steering.Node{Name: "n", Addr: ap(fam.n1, 0)})
			c.Policies = table(t, rule("all", map[int]string{4: "0.0.0.0/0", 6: "::/0"}[r.Ver], s))
		})
		var parts reassembler
		var got [][]byte
		for n := 1; n <= r.Last; n++ {
			var v wire.View
			if packets[n] == nil || wire.Parse(packets[n], &v) != wire.OK || !v.Has(wire.Fragment) {
				continue
			}
			_, outs := p.sendAll(packets[n])
			for _, out := range outs {
				var outer, inner wire.View
				require.Equal(t, wire.OK, wire.Parse(out, &outer))
				at, _, ok := wire.OpenTunnel(out, &outer, 0)
				if !ok {
					continue // an ICMP error
				}
				b := out[at:]
				require.Equal(t, wire.OK, wire.Parse(b, &inner))
				if v6 := inner.Version == 6; v6 && inner.FragAt != wire.IPv6Len {
					continue
				}
				if packet, _ := parts.add(p.now, b, &inner); packet != nil {
					h := wire.IPv6Len
					if packet[0]>>4 == 4 {
						h = int(packet[0]&15) * 4
					}
					got = append(got, packet[h:])
				}
			}
		}
		sums := map[string]bool{}
		for _, b := range got {
			s := sha256.Sum256(b)
			sums[hex.EncodeToString(s[:])] = true
		}
		if r.Overlap || r.TooLong || r.MultipleTails {
			refused++
			continue
		}
		if sums[r.Sum] {
			whole++
		} else {
			strict++
		}
	}
	// Seven are refused, or are no fragments of the packet itself: first fragments without the whole transport header, headers out of
	// order, lengths that are impossible, and fragments in a tunnel.
	require.Equal(t, []int{10, 5, 7}, []int{whole, refused, strict})
}
