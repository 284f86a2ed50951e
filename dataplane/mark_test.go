package dataplane

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering/path"
)

// markingPaths has a path rule that marks port 80 with 46, one that only asks for export of port 81, and QoS rows that mark UDP with 10, and what the
// nodes optimise, with DSCP 8 from its sender, with 18.
func markingPaths(t *testing.T) *path.Engine {
	e, err := path.New(&path.Config{
		Rules: []path.Rule{
			{Name: "voice", Match: path.Match{DstPort: path.Ports{First: 80, Last: 80}}, SetDSCP: path.CodePoint(46)},
			{Name: "watch", Match: path.Match{DstPort: path.Ports{First: 81, Last: 81}}, Export: true},
		},
		Marks: []path.Mark{
			{Name: "udp", Match: path.Match{Protocol: wire.ProtoUDP}, DSCP: path.CodePoint(10)},
			{Name: "eight", Match: path.Match{DSCP: path.CodePoint(8)}, DSCP: path.CodePoint(18)},
		},
	}, 1, nil)
	require.NoError(t, err)
	require.True(t, e.Marks())
	return e
}

// What leaves past the interception is marked: what a node sends in its tunnel and what nothing redirects, in whole packets and in fragments, with
// the checksums right and the ECN bits as they were. What goes to a node is not.
func TestMarks(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, _ := inPath(t, fam, func(c *Config) { c.Intercept.Paths = markingPaths(t) })
		from := ap(fam.client, 40000)
		tos := func(b []byte, tos uint8) []byte {
			_, v := parseFlow(b)
			b = bytes.Clone(b)
			v.SetTOS(b, tos)
			return b
		}
		wants := func(in []byte, dscp uint8) {
			t.Helper()
			_, v := parseFlow(in)
			verdict, out := p.send(bytes.Clone(in))
			require.Equal(t, Passed, verdict, "drops %v", p.drops())
			require.Equal(t, tos(in, dscp<<2|v.TOS(in)&3), out)
			_, w := parseFlow(out)
			require.True(t, w.HeaderSumOK(out) && w.SumOK(out))
		}
		node := func(b []byte) []byte { // what a node sends
			y := wire.Tunnel{}
			w := make([]byte, y.Overhead(fam.client.Is6())+len(b))
			copy(w[len(w)-len(b):], b)
			y.Put(w, fam.n1.AsSlice(), fam.router.AsSlice(), fam.client.Is6(), 0, 0, true, 0)
			return w
		}
		fromNode := func(in []byte, dscp uint8) {
			t.Helper()
			_, v := parseFlow(in)
			verdict, out := p.send(node(in))
			require.Equal(t, Passed, verdict, "drops %v", p.drops())
			require.Equal(t, tos(in, dscp<<2|v.TOS(in)&3), out)
		}
		for ecn := range uint8(4) {
			wants(tos(tcp(from, ap(fam.elsewhere, 80), "A", 1, 1, "x"), ecn), 46) // of a connection from before
			fromNode(tos(tcp(from, ap(fam.elsewhere, 80), "A", 1, 1, "x"), ecn), 46)
			wants(tos(udp(from, ap(fam.elsewhere, 53), "x"), ecn), 10)
			fromNode(tos(udp(from, ap(fam.elsewhere, 53), "x"), 8<<2|ecn), 10)
			wants(tos(udp(from, ap(fam.elsewhere, 80), "x"), ecn), 46) // the path rule's wins
			wants(tos(tcp(from, ap(fam.elsewhere, 443), "S", 1, 0, ""), 8<<2|ecn), 18)
			wants(tos(tcp(from, ap(fam.elsewhere, 443), "S", 1, 0, ""), 7<<2|ecn), 7)
			wants(tos(echo(fam.client, fam.elsewhere, false, 1, 1, "x"), 8<<2|ecn), 18)
		}
		require.EqualValues(t, 28, p.Stats().Marked)
		// What is redirected reaches its node as it was, the outer header with the same.
		verdict, _ := p.send(tcp(from, ap(fam.elsewhere, 80), "S", 1, 0, ""))
		require.Equal(t, Forwarded, verdict)
		ack := tos(tcp(from, ap(fam.elsewhere, 80), "A", 2, 1, "x"), 3<<2)
		verdict, out := p.send(bytes.Clone(ack))
		require.Equal(t, Forwarded, verdict)
		p.inTunnel(out, ack)
		_, v := parseFlow(out)
		require.EqualValues(t, 3<<2, v.TOS(out))
		// Every fragment has the mark of the first, whichever comes first.
		whole := udp(from, ap(fam.elsewhere, 80), strings.Repeat("x", 3000))
		parts := split(whole, 1000, 77)
		verdicts, outs := p.sendAll(parts[1], parts[0], parts[2], parts[3])
		require.Equal(t, []Verdict{Held, Passed, Passed, Passed}, verdicts)
		require.Len(t, outs, 4)
		for _, b := range outs {
			_, v := parseFlow(b)
			require.EqualValues(t, 46<<2, v.TOS(b))
			require.True(t, v.HeaderSumOK(b))
		}
		// It is explained, and no rule, no mark.
		x := p.Explain(udp(from, ap(fam.elsewhere, 53), "x"))
		require.Contains(t, x.String(), `QoS row 0 "udp": DSCP 10`)
		require.NoError(t, p.inter.conf.Paths.Set(nil))
		require.False(t, p.inter.conf.Paths.Marks())
		verdict, out = p.send(udp(from, ap(fam.elsewhere, 53), "x"))
		require.Equal(t, Passed, verdict)
		require.Equal(t, udp(from, ap(fam.elsewhere, 53), "x"), out)
	})
}

// Flows are exported by path rules that ask for it, whether they also choose a way or not, and over a restart.
func TestExportByPathRules(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, all := range []bool{false, true} {
			var c collector
			conf := &FlowExport{Exporter: exporter(t, &c, flowexport.IPFIX)}
			p, _ := inPath(t, fam, func(c *Config) { c.Intercept.Paths, c.Intercept.ExportFlows, c.Flows = markingPaths(t), all, conf })
			for _, port := range []uint16{80, 81} {
				v, _ := p.send(tcp(ap(fam.client, 40000), ap(fam.elsewhere, port), "S", 1, 0, ""))
				require.Equal(t, Forwarded, v)
			}
			chosen := map[uint16]bool{}
			for s := range p.Sessions() {
				r, _ := p.sessions().Peek(s.key())
				chosen[s.VIP.Port()] = conf.chosen(p.Plane, s.key(), p.slab.recs[r.record()].service, p.slab.recs[r.record()].flags)
			}
			require.Equal(t, map[uint16]bool{80: all, 81: true}, chosen)
			p.now = p.now.Add(2 * time.Minute)
			p.StepFlows(p.now)
			want := uint64(1)
			if all {
				want = 2
			}
			require.Equal(t, want, p.FlowStats().Reported)
			require.NotEmpty(t, c.all)
			var saved bytes.Buffer
			_, err := p.WriteTo(&saved)
			require.NoError(t, err)
			q, _ := inPath(t, fam, func(c *Config) { c.Intercept.Paths = markingPaths(t) })
			res, err := q.Restore(&saved)
			require.NoError(t, err)
			require.Equal(t, 2, res.Sessions)
			for s := range q.Sessions() {
				r, _ := q.sessions().Peek(s.key())
				require.Equal(t, s.VIP.Port() == 81, q.slab.recs[r.record()].flags&isExported != 0)
			}
		}
	})
}

// What a service routes on is redirected by nothing, and so is marked, every fragment of it like the first one, and counted for the service.
func TestMarksOfRoutedServices(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, _ := inPath(t, fam, func(c *Config) {
			c.Intercept.Paths = markingPaths(t)
			c.Policies = table(t, rule("on", fam.vip.String(), &Service{Name: "on", Forward: Route}))
		})
		from, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		whole := udp(from, vip, strings.Repeat("x", 3000))
		octets := uint64(0)
		marked := func(outs [][]byte, dscp uint8) {
			t.Helper()
			for _, b := range outs {
				_, v := parseFlow(b)
				require.Equal(t, dscp<<2, v.TOS(b))
				require.True(t, v.HeaderSumOK(b))
				octets += uint64(len(b))
			}
		}
		for id, order := range [][]int{{0, 1, 2, 3}, {1, 0, 2, 3}, {3, 2, 1, 0}} {
			parts := split(whole, 1000, uint32(77+id))
			var outs [][]byte
			for _, i := range order {
				_, out := p.sendAll(parts[i])
				outs = append(outs, out...)
			}
			require.Len(t, outs, 4, "drops %v", p.drops())
			marked(outs, 46)
			got := join(t, outs)
			_, v := parseFlow(got)
			require.True(t, v.SumOK(got))
			require.Equal(t, whole[v.L4:], got[v.L4:])
		}
		verdict, out := p.send(udp(from, ap(fam.vip, 53), "x"))
		require.Equal(t, Forwarded, verdict)
		marked([][]byte{out}, 10)
		for name, s := range p.Services() {
			if name == "on" {
				require.Equal(t, Count{Packets: 13, Octets: octets}, s.In)
			}
		}
		require.Zero(t, p.Stats().Sessions)
		// One whose time to live is used up is no more sent on than any other.
		last := split(whole, 1000, 99)
		_, v := parseFlow(last[1])
		v.SetTTL(last[1], 1)
		p.sendAll(last[0])
		verdicts, _ := p.sendAll(last[1])
		require.Equal(t, []Verdict{Dropped}, verdicts)
		require.EqualValues(t, 1, p.drops()[TTLExpired])
	})
}
