package dataplane

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/internal/testenv"
)

// collector keeps the messages of an exporter.
type collector struct {
	mu  sync.Mutex
	all [][]byte
}

func (c *collector) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, bytes.Clone(b))
	return len(b), nil
}

// dissect has tshark read the messages.
func (c *collector) dissect(t *testing.T, port uint16, fields ...string) [][]string {
	t.Helper()
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	require.NoError(t, w.WriteFileHeader(65536, layers.LinkTypeRaw))
	fam := families2()[0]
	for _, m := range c.all {
		b := udp(ap(fam.client, 1), ap(fam.vip, port), string(m))
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b))
	}
	return tsharkFields(t, file.Bytes(), fields...)
}

func exporter(t *testing.T, c *collector, v flowexport.Version) *flowexport.Exporter {
	x, err := flowexport.New(&flowexport.Config{Collector: c, Version: v})
	require.NoError(t, err)
	return x
}

func TestFlowExport(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, version := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
			t.Run(version.String(), func(t *testing.T) {
				p := newPlane(t, fam, func(_ *Config, s *Service) { s.ExportFlows = true })
				var c collector
				require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: exporter(t, &c, version)}))
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				p.open(client)
				p.StepFlows(p.now)
				require.Zero(t, p.FlowStats().Reported, "nothing is due")
				// It goes on: reported after a minute, and only what is new.
				for range 7 {
					p.now = p.now.Add(10 * time.Second)
					p.forwarded(tcp(client, vip, "A", 101, 501, "0123456789"), client, p.nodeOf(client))
					p.StepFlows(p.now)
				}
				require.EqualValues(t, 2, p.FlowStats().Reported, "the client's, and the node's as inactive")
				p.now = p.now.Add(20 * time.Second)
				p.StepFlows(p.now)
				require.EqualValues(t, 3, p.FlowStats().Reported, "the last packets, inactive")
				p.now = p.now.Add(20 * time.Second)
				p.StepFlows(p.now)
				require.EqualValues(t, 3, p.FlowStats().Reported, "nothing new")
				// It ends.
				node := p.nodeOf(client)
				p.send(tcp(client, vip, "FA", 111, 501, ""))
				p.send(tcp(node, client, "FA", 501, 112, ""))
				p.send(tcp(client, vip, "A", 112, 502, ""))
				s, ok := p.Session(6, client, vip)
				require.True(t, ok)
				in, out := s.In, s.Out
				p.now = p.now.Add(10 * time.Minute)
				p.Step(p.now)
				p.StepFlows(p.now)
				require.EqualValues(t, 5, p.FlowStats().Reported)
				require.Empty(t, p.flows.known)
				require.Zero(t, p.FlowStats().Failed+p.FlowStats().Lost)

				port := uint16(4739)
				if version == flowexport.NetFlow9 {
					port = 2055
				}
				src := "cflow.srcaddr"
				if fam.client.Is6() {
					src = "cflow.srcaddrv6"
				}
				rows := c.dissect(t, port, src, "cflow.octets", "cflow.packets", "cflow.flow_end_reason", "_ws.malformed")
				var total [2]Count
				for _, r := range rows {
					from, octets, packets := splitComma(r[0]), splitComma(r[1]), splitComma(r[2])
					require.Empty(t, r[4])
					for i := range from {
						dir := toNode
						if from[i] != fam.client.String() {
							dir = toClient
						}
						total[dir].Octets += number(t, octets[i])
						total[dir].Packets += number(t, packets[i])
					}
				}
				require.Equal(t, [2]Count{in, out}, total, "every packet is told, and once")
			})
		}
	})
}

func splitComma(s string) (out []string) {
	for _, x := range bytes.Split([]byte(s), []byte(",")) {
		if len(x) > 0 {
			out = append(out, string(x))
		}
	}
	return out
}

func number(t *testing.T, s string) (n uint64) {
	_, err := fmt.Sscan(s, &n)
	require.NoError(t, err, s)
	return n
}

// nodeOf is the node's end of a client's session.
func (p *testPlane) nodeOf(client netip.AddrPort) (node netip.AddrPort) {
	for s := range p.Sessions() {
		if s.Client == client {
			return s.Node
		}
	}
	return node
}

func TestFlowExportChoices(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	var c, d collector
	require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: exporter(t, &c, 0)}))
	p.open(ap(fam.client, 1000))
	end := func() {
		p.now = p.now.Add(time.Hour)
		p.Step(p.now)
		p.StepFlows(p.now)
	}
	end()
	require.Zero(t, p.FlowStats().Reported, "the service does not ask for it")
	// While running: all services, one session in four.
	require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: exporter(t, &d, 0), All: true, Sample: 4, Active: -1, Inactive: -1}))
	for i := range uint16(400) {
		p.send(udp(ap(fam.client, 1000+i), ap(fam.vip, 80), "x"))
	}
	p.now = p.now.Add(20 * time.Second)
	p.StepFlows(p.now)
	require.Zero(t, p.FlowStats().Reported, "no timeouts")
	end()
	require.InDelta(t, 100, p.FlowStats().Reported, 50)
	require.NotEmpty(t, d.all)
	require.Empty(t, c.all)
	// The end of exporting tells what is left.
	require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: exporter(t, &c, 0), All: true}))
	before := p.FlowStats().Reported
	p.open(ap(fam.client, 7))
	require.NoError(t, p.SetFlowExport(nil))
	require.Equal(t, before+2, p.FlowStats().Reported)
	require.NotEmpty(t, c.all)
	end()
	require.Equal(t, before+2, p.FlowStats().Reported)

	err := p.SetFlowExport(&FlowExport{Sample: -1})
	require.ErrorContains(t, err, "FlowExport.Exporter")
	require.ErrorContains(t, err, "FlowExport.Sample = -1")
}

// More sessions end at once than can wait to be told: the rest is counted.
func TestFlowExportIsBounded(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(_ *Config, s *Service) { s.ExportFlows = true })
	var c collector
	require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: exporter(t, &c, 0)}))
	p.flows.ended = make([]endedSession, maxEnded)
	p.open(ap(fam.client, 1))
	require.Equal(t, 1, p.KillSessions(func(Session) bool { return true }))
	require.EqualValues(t, 1, p.FlowStats().Lost)
	require.Len(t, p.flows.ended, maxEnded)
}

// nfcapd receives what a running Plane tells, and nfdump prints it.
func TestNfcapdReceivesSessions(t *testing.T) {
	for _, version := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
		t.Run(version.String(), func(t *testing.T) {
			collector := testenv.StartNfcapd(t)
			x, err := flowexport.New(&flowexport.Config{Collector: collector, Version: version})
			require.NoError(t, err)
			want := map[string]uint64{}
			both(t, func(t *testing.T, fam family) {
				p := newPlane(t, fam, func(_ *Config, s *Service) { s.ExportFlows = true })
				require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: x}))
				client := ap(fam.client, 40001)
				node := p.open(client)
				p.forwarded(tcp(node, client, "PA", 501, 101, "an answer of some length"), ap(fam.vip, 80), client)
				s, _ := p.Session(6, client, ap(fam.vip, 80))
				want[fam.client.String()], want[node.Addr().String()] = s.In.Octets, s.Out.Octets
				require.NoError(t, p.Close())
			})
			records := collector.Records()
			got := map[string]uint64{}
			for _, r := range records {
				if r["src_port"] != 40001.0 && r["dst_port"] != 40001.0 {
					continue
				}
				for _, k := range []string{"src4_addr", "src6_addr"} {
					if a, ok := r[k].(string); ok {
						got[a] += uint64(r["in_bytes"].(float64))
					}
				}
			}
			require.Equal(t, want, got, "%v", records)
		})
	}
}
