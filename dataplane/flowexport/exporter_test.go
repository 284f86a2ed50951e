package flowexport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/internal/testenv"
)

var start = time.UnixMilli(1_800_000_000_123)

func flows() []flowexport.Flow {
	ap := netip.MustParseAddrPort
	return []flowexport.Flow{
		{Src: ap("192.0.2.9:40000"), Dst: ap("192.0.2.80:443"), NATDst: ap("10.0.0.1:8443"), Protocol: 6, TOS: 0xb8, TCPFlags: 0x1b, InPort: 2, OutPort: 3,
			Octets: 5_000_000_000, Packets: 4_000_000, Start: start, End: start.Add(1500 * time.Millisecond), Reason: flowexport.EndOfFlow, Policy: "web", Node: "n1"},
		{Src: ap("[2001:db8::9]:40001"), Dst: ap("[2001:db8::80]:53"), NATSrc: ap("[2001:db8:1::1]:1024"), NATDst: ap("[2001:db8:1::2]:53"), Protocol: 17,
			Octets: 100, Packets: 1, Start: start, End: start, Reason: flowexport.IdleTimeout, Policy: strings.Repeat("long", 80), Node: "n2"},
		{Src: ap("[::ffff:192.0.2.7]:0"), Dst: ap("192.0.2.80:0"), Protocol: 1, ICMPType: 8, Octets: 84, Packets: 1, Start: start, End: start.Add(time.Second), Reason: flowexport.ActiveTimeout},
	}
}

// messages collects what an exporter sends.
type messages struct{ all [][]byte }

func (m *messages) Write(b []byte) (int, error) {
	m.all = append(m.all, bytes.Clone(b))
	return len(b), nil
}

// dissect has tshark print the fields of each flow record, by way of a capture.
func dissect(t *testing.T, msgs [][]byte, port int, fields ...string) []string {
	t.Helper()
	tshark := testenv.NeedServers(t, "tshark")[0]
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	require.NoError(t, w.WriteFileHeader(65536, layers.LinkTypeRaw))
	for _, m := range msgs {
		b := gopacket.NewSerializeBuffer()
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{127, 0, 0, 1}, DstIP: net.IP{127, 0, 0, 1}}
		udp := &layers.UDP{SrcPort: 5000, DstPort: layers.UDPPort(port)}
		require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
		require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(m)))
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: start, CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}, b.Bytes()))
	}
	name := filepath.Join(t.TempDir(), "export.pcap")
	require.NoError(t, os.WriteFile(name, file.Bytes(), 0o600))
	args := []string{"-r", name, "-d", fmt.Sprintf("udp.port==%d,cflow", port), "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=;"}
	for _, f := range append(fields, "_ws.malformed", "_ws.expert.message") {
		args = append(args, "-e", f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, tshark, args...).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimRight(string(out), "\n"), "\n")
}

func TestWiresharkReadsEveryField(t *testing.T) {
	for _, v := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		t.Run(v.String(), func(t *testing.T) {
			var got messages
			cfg := &flowexport.Config{Collector: &got, Version: v, Domain: 7}
			if v == flowexport.IPFIX {
				cfg.EnterpriseNumber = 32473 // for documentation, RFC 5612
			}
			x, err := flowexport.New(cfg)
			require.NoError(t, err)
			for _, f := range flows() {
				require.NoError(t, x.AddAt(start, &f))
			}
			require.NoError(t, x.FlushAt(start))
			require.Equal(t, uint64(3), x.Stats().Records)
			rows := dissect(t, got.all, 2055, "cflow.version", "cflow.srcaddr", "cflow.srcaddrv6", "cflow.dstport", "cflow.octets", "cflow.packets", "cflow.post_natdestination_ipv4_address",
				"cflow.post_nat_destination_ipv6_address", "cflow.post_naptdestination_transport_port", "cflow.flow_end_reason", "cflow.tos", "cflow.tcpflags", "cflow.inputint", "cflow.appl_name")
			require.Len(t, rows, 1)
			f := strings.Split(rows[0], "\t")
			require.Equal(t, map[flowexport.Version]string{flowexport.IPFIX: "10", flowexport.NetFlow9: "9"}[v], f[0])
			require.Equal(t, "192.0.2.9;192.0.2.7", f[1])
			require.Equal(t, "2001:db8::9", f[2])
			require.Equal(t, "443;53;0", f[3])
			require.Equal(t, "5000000000;100;84", f[4])
			require.Equal(t, "4000000;1;1", f[5])
			require.Equal(t, "10.0.0.1;192.0.2.80", f[6])
			require.Equal(t, "2001:db8:1::2", f[7])
			require.Equal(t, "8443;53;0", f[8])
			require.Equal(t, "3;1;2", f[9])
			require.Equal(t, "0xb8;0x00;0x00", f[10])
			require.Equal(t, "0x1b;0x00;0x00", strings.ReplaceAll(f[11], "0x001b", "0x1b"))
			require.Equal(t, "2;0;0", f[12])
			require.Contains(t, f[13], "web")
			require.NotContains(t, rows[0], "alformed")
			require.NotContains(t, rows[0], "sequence")
		})
	}
}

func TestTemplatesComeAgainAndMessagesStayShort(t *testing.T) {
	for _, v := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		var got messages
		x, err := flowexport.New(&flowexport.Config{Collector: &got, Version: v, MaxMessage: 600})
		require.NoError(t, err)
		now := start
		const n = 300
		for i := range n {
			f := flows()[i%3]
			require.NoError(t, x.AddAt(now, &f))
			now = now.Add(time.Second)
		}
		require.NoError(t, x.FlushAt(now))
		templates := 0
		for _, m := range got.all {
			require.LessOrEqual(t, len(m), 600)
			head := 16
			if v == flowexport.NetFlow9 {
				head = 20
			}
			if m[head] == 0 && m[head+1] < 3 {
				templates++
			}
		}
		require.InDelta(t, 6, templates, 1, "once a minute over 300 seconds")
		// Nothing is lost or out of sequence, says the dissector.
		octets := 0
		for _, row := range dissect(t, got.all, 2055, "cflow.octets") {
			require.NotContains(t, row, "sequence")
			require.NotContains(t, row, "alformed")
			octets += len(strings.Split(strings.Split(row, "\t")[0], ";"))
		}
		require.Equal(t, n, octets)
	}
}

// nfcapd receives the flows over a real socket, and nfdump prints them.
func TestNfdumpReadsThem(t *testing.T) {
	for _, v := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		t.Run(v.String(), func(t *testing.T) {
			collector := testenv.StartNfcapd(t)
			x, err := flowexport.New(&flowexport.Config{Collector: collector, Version: v})
			require.NoError(t, err)
			now := time.Now()
			for _, f := range flows() {
				f.Start, f.End = now, now.Add(1500*time.Millisecond)
				require.NoError(t, x.Add(&f))
			}
			require.NoError(t, x.Flush())
			records := collector.Records()
			require.Lenf(t, records, 3, "%v", records)
			bySrc := map[string]map[string]any{}
			for _, r := range records {
				for _, k := range []string{"src4_addr", "src6_addr"} {
					if a, ok := r[k].(string); ok {
						bySrc[a] = r
					}
				}
			}
			web := bySrc["192.0.2.9"]
			require.NotNil(t, web, "%v", records)
			require.EqualValues(t, int64(5_000_000_000), web["in_bytes"])
			require.EqualValues(t, 4_000_000, web["in_packets"])
			require.EqualValues(t, 443, web["dst_port"])
			require.EqualValues(t, 6, web["proto"])
			require.Contains(t, bySrc, "2001:db8::9")
		})
	}
}

func TestFaults(t *testing.T) {
	_, err := flowexport.New(nil)
	require.ErrorContains(t, err, "Collector: nil")
	_, err = flowexport.New(&flowexport.Config{Collector: &messages{}, Version: flowexport.NetFlow9, MaxMessage: 100, TemplateInterval: -1, EnterpriseNumber: 5})
	for _, want := range []string{"MaxMessage: 100", "TemplateInterval: -1ns", "EnterpriseNumber: 5"} {
		require.ErrorContains(t, err, want)
	}
	x, err := flowexport.New(&flowexport.Config{Collector: failing{}})
	require.NoError(t, err)
	require.ErrorContains(t, x.Add(&flowexport.Flow{Src: netip.MustParseAddrPort("1.2.3.4:5"), Dst: netip.MustParseAddrPort("[::1]:5")}), "one family")
	require.ErrorContains(t, x.Add(&flowexport.Flow{}), "one family")
	f := flows()[0]
	require.NoError(t, x.Add(&f))
	require.ErrorIs(t, x.Flush(), errGone)
	require.Equal(t, flowexport.Stats{Records: 1, Failed: 1, Invalid: 2}, x.Stats())
}

var errGone = errors.New("gone")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errGone }

func TestVersionText(t *testing.T) {
	for _, v := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		b, err := v.MarshalText()
		require.NoError(t, err)
		var w flowexport.Version
		require.NoError(t, w.UnmarshalText(b))
		require.Equal(t, v, w)
	}
	var v flowexport.Version
	require.ErrorContains(t, v.UnmarshalText([]byte("sflow")), `"sflow": want ipfix or netflow9`)
}

func TestSamplerIsFairAndSteady(t *testing.T) {
	s := flowexport.NewSampler(10)
	n := 0
	for i := range uint64(100_000) {
		if s.Sampled(i) {
			n++
		}
		require.Equal(t, s.Sampled(i), s.Sampled(i))
	}
	require.InDelta(t, 10_000, n, 500)
	require.True(t, flowexport.Sampler{}.Sampled(5))
}

func TestDue(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for _, c := range []struct {
		now, last, report int
		want              flowexport.EndReason
	}{{10, 9, 0, 0}, {60, 59, 0, flowexport.ActiveTimeout}, {60, 45, 30, flowexport.IdleTimeout}, {120, 60, 0, flowexport.IdleTimeout}} {
		got, ok := flowexport.Due(at(c.now), at(c.last), at(c.report), time.Minute, 15*time.Second)
		require.Equal(t, c.want, got)
		require.Equal(t, c.want != 0, ok)
	}
	_, ok := flowexport.Due(at(1000), at(0), at(0), 0, 0)
	require.False(t, ok)
}

func ExampleExporter() {
	conn, err := net.Dial("udp", "127.0.0.1:4739")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	x, err := flowexport.New(&flowexport.Config{Collector: conn})
	if err != nil {
		fmt.Println(err)
		return
	}
	flow := flowexport.Flow{
		Src: netip.MustParseAddrPort("192.0.2.9:40000"), Dst: netip.MustParseAddrPort("192.0.2.80:443"), NATDst: netip.MustParseAddrPort("10.0.0.1:8443"),
		Protocol: 6, Octets: 1500, Packets: 3, Start: start, End: start.Add(time.Second), Reason: flowexport.EndOfFlow, Policy: "web",
	}
	if err := x.Add(&flow); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x.Stats().Records, "record buffered; Flush sends it")
	// Output: 1 record buffered; Flush sends it
}

func BenchmarkAdd(b *testing.B) {
	x, err := flowexport.New(&flowexport.Config{Collector: discard{}})
	require.NoError(b, err)
	f := flows()[0]
	b.ReportAllocs()
	for b.Loop() {
		if err := x.AddAt(start, &f); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// flaky refuses messages while it is told to.
type flaky struct {
	messages
	refuse bool
}

func (f *flaky) Write(b []byte) (int, error) {
	if f.refuse {
		return 0, errors.New("connection refused")
	}
	return f.messages.Write(b)
}

// The templates may have gone with a message that failed: the next one has them, and the sequence shows the gap.
func TestTemplatesComeAgainAfterAFailure(t *testing.T) {
	for _, v := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		got := &flaky{refuse: true}
		x, err := flowexport.New(&flowexport.Config{Collector: got, Version: v})
		require.NoError(t, err)
		f := flows()[0]
		require.NoError(t, x.AddAt(start, &f))
		require.Error(t, x.FlushAt(start))
		require.EqualValues(t, 1, x.Stats().Failed)
		got.refuse = false
		require.NoError(t, x.AddAt(start, &f))
		require.NoError(t, x.FlushAt(start))
		require.NoError(t, x.AddAt(start, &f))
		require.NoError(t, x.FlushAt(start))
		require.Len(t, got.all, 2)
		head, sequence, set := 16, 8, byte(2)
		if v == flowexport.NetFlow9 {
			head, sequence, set = 20, 12, 0
		}
		require.Equal(t, []byte{0, set}, got.all[0][head:head+2], "templates first")
		require.NotEqual(t, []byte{0, set}, got.all[1][head:head+2], "and once")
		require.Equal(t, []byte{0, 0, 0, 1}, got.all[0][sequence:sequence+4], "one is missing")
		require.Equal(t, []byte{0, 0, 0, 2}, got.all[1][sequence:sequence+4])
	}
}

// Long names are cut to whole characters, and so that the record fits the shortest message.
func TestLongNamesFit(t *testing.T) {
	var got messages
	x, err := flowexport.New(&flowexport.Config{Collector: &got, MaxMessage: 512, EnterpriseNumber: 32473})
	require.NoError(t, err)
	for _, f := range flows() {
		f.Policy, f.Node = strings.Repeat("ä", 200), "x"+strings.Repeat("ä", 200)
		require.NoError(t, x.AddAt(start, &f))
	}
	require.NoError(t, x.FlushAt(start))
	for _, m := range got.all {
		require.LessOrEqual(t, len(m), 512)
	}
	require.EqualValues(t, 3, x.Stats().Records)
	for _, row := range dissect(t, got.all, 2055, "cflow.appl_name") {
		require.NotContains(t, row, "alformed")
		require.NotContains(t, row, "\ufffd")
	}
}
