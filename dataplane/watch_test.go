package dataplane

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
)

// tsharkFields has tshark print fields of every packet of a capture.
func tsharkFields(t *testing.T, file []byte, fields ...string) [][]string {
	t.Helper()
	tshark := testenv.NeedServers(t, "tshark")[0]
	name := filepath.Join(t.TempDir(), "c.pcapng")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"-r", name, "-d", "udp.port==4739,cflow", "-d", "udp.port==2055,cflow", "-T", "fields", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.CommandContext(ctx, tshark, args...).Output()
	require.NoErrorf(t, err, "%s", out)
	var rows [][]string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		rows = append(rows, strings.Split(line, "|"))
	}
	return rows
}

// finish stops a capture and returns its file.
func finish(t *testing.T, c *Capture) {
	t.Helper()
	c.Stop()
	require.NoError(t, c.Run(t.Context()))
}

func TestCapture(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		var all, drops, one, other bytes.Buffer
		cs := make(map[*bytes.Buffer]*Capture)
		for w, cfg := range map[*bytes.Buffer]*CaptureConfig{
			&all: nil, &drops: {Filter: Filter{Dropped: true, Reasons: []Reason{NoPolicy, Truncated}}},
			&one:   {Filter: Filter{Protocol: wire.ProtoTCP, A: End{Port: 40000}, B: End{Net: netip.PrefixFrom(fam.vip, fam.vip.BitLen()), Port: 80}, Services: []string{"web"}}, SnapLen: 60},
			&other: {Filter: Filter{Nodes: []string{"n9"}}},
		} {
			c, err := p.Capture(w, cfg)
			require.NoError(t, err)
			cs[w] = c
		}
		node := p.open(client)
		p.send(udp(ap(fam.client2, 9), vip, "datagram"))
		p.send(tcp(client, ap(fam.vip, 81), "S", 1, 0, ""))
		p.send([]byte{0x45, 0})
		for _, c := range cs {
			finish(t, c)
		}
		require.Nil(t, p.watchers.Load())
		p.send(tcp(client, vip, "A", 101, 501, "not captured any more"))

		src, dst := "ip.src", "ip.dst"
		if fam.client.Is6() {
			src, dst = "ipv6.src", "ipv6.dst"
		}
		rows := tsharkFields(t, all.Bytes(), src, dst, "frame.len", "frame.comment")
		require.Len(t, rows, 6)
		require.Equal(t, []string{fam.client.String(), fam.vip.String()}, rows[0][:2], "as it came")
		require.Regexp(t, `^forwarded; service "web", to node "n."; as tcp .* `+regexpQuote(node.String()), rows[0][3])
		require.Equal(t, []string{node.Addr().String(), fam.client.String()}, rows[1][:2])
		require.Contains(t, rows[1][3], `from node "n`)
		require.Equal(t, "dropped: no-policy", rows[4][3])
		require.Equal(t, "dropped: truncated", rows[5][3])
		rows = tsharkFields(t, drops.Bytes(), "frame.comment")
		require.Equal(t, [][]string{{"dropped: no-policy"}, {"dropped: truncated"}}, rows)
		rows = tsharkFields(t, one.Bytes(), "frame.cap_len", "frame.len")
		require.Len(t, rows, 3, "the answers fit by their session")
		for _, r := range rows {
			if fam.client.Is6() {
				require.Equal(t, "60", r[0])
			}
		}
		require.Zero(t, cs[&other].Stats().Packets)
	})
}

func regexpQuote(s string) string {
	return strings.NewReplacer("[", `\[`, "]", `\]`, ".", `\.`).Replace(s)
}

func TestCaptureBounds(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam)
	var file bytes.Buffer
	c, err := p.Capture(&file, &CaptureConfig{Queue: 5, MaxPackets: 7})
	require.NoError(t, err)
	p.open(ap(fam.client, 40000))
	for range 5 {
		p.open(ap(fam.client, 40000))
	}
	require.EqualValues(t, 13, c.Stats().Lost, "what finds no room is forwarded all the same")
	done := make(chan error)
	go func() { done <- c.Run(t.Context()) }()
	require.Eventually(t, func() bool { return c.Stats().Packets == 5 }, 20*time.Second, time.Millisecond)
	for range 4 {
		p.open(ap(fam.client, 40000))
	}
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the capture did not end by itself")
	}
	require.EqualValues(t, 7, c.Stats().Packets)
	require.Nil(t, p.watchers.Load())

	c, err = p.Capture(&file, &CaptureConfig{MaxOctets: 300})
	require.NoError(t, err)
	p.open(ap(fam.client, 40000))
	require.NoError(t, c.Run(t.Context()))
	require.LessOrEqual(t, c.Stats().Octets, int64(300))

	_, err = p.Capture(&file, &CaptureConfig{SnapLen: -1, MaxPackets: -1, Queue: -1, MaxOctets: -1, Filter: Filter{Reasons: []Reason{0}, A: End{Net: netip.MustParsePrefix("::ffff:1.2.3.4/120")}}})
	for _, want := range []string{"SnapLen = -1", "MaxPackets = -1", "Queue = -1", "MaxOctets = -1", "Reasons[0]", "A.Net", "Dropped"} {
		require.ErrorContains(t, err, want)
	}
	_, err = p.Trace(&TraceConfig{Rate: -1, Queue: -1})
	require.ErrorContains(t, err, "Rate = -1")
	require.ErrorContains(t, err, "Queue = -1")
}

// What is traced is forwarded as if nobody looked: the same packets, sessions and counts.
func TestTraceChangesNothing(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p, q := newPlane(t, fam), newPlane(t, fam)
		q.now = p.now
		tr, err := p.Trace(&TraceConfig{Rate: 1e6, Queue: 1000})
		require.NoError(t, err)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		f, _ := parseFlow(func() []byte { _, out := q.send(tcp(client, vip, "S", 100, 0, "")); return out }())
		_, first := p.send(tcp(client, vip, "S", 100, 0, ""))
		got, _ := parseFlow(first)
		require.Equal(t, f, got)
		node := f.Dst
		for _, b := range [][]byte{
			tcp(node, client, "SA", 500, 101, ""), tcp(client, vip, "A", 101, 501, ""), tcp(client, vip, "PA", 101, 501, "hello"),
			udp(ap(fam.client2, 5), vip, "x"), echo(fam.client, fam.vip, false, 7, 1, "ping"), tcp(ap(fam.client2, 8), vip, "A", 1, 1, ""),
			tcp(client, ap(fam.vip, 81), "S", 1, 0, ""), unreachable(fam.router, fam.vip, tcp(vip, client, "A", 501, 101, "x"), 8),
			tcp(ap(fam.elsewhere, 1), ap(fam.client2, 2), "S", 1, 0, ""), tcp(client, vip, "FA", 106, 501, ""), tcp(node, client, "FA", 501, 107, ""),
			tcp(client, vip, "A", 107, 502, ""), {0x60},
		} {
			v1, out1 := p.send(bytes.Clone(b))
			v2, out2 := q.send(bytes.Clone(b))
			require.Equal(t, v2, v1)
			require.Equal(t, out2, out1)
		}
		require.Equal(t, q.Stats(), p.Stats())
		require.Equal(t, q.drops(), p.drops())
		tr.Stop()
		var told []Traced
		tr.Run(t.Context(), func(e Traced) { told = append(told, e) })
		require.Len(t, told, 14)
		require.Equal(t, Forwarded, told[0].Verdict)
		require.Equal(t, node, told[0].Out.Dst())
		require.NotNil(t, told[0].Steering)
		require.False(t, told[0].Known && told[0].Backwards)
		require.Contains(t, told[0].String(), "bind")
		require.True(t, told[1].Backwards)
		require.Equal(t, "web", told[1].Service)
		require.Equal(t, Truncated, told[13].Reason)
		require.Zero(t, tr.Lost())

		// A flow of one's choice, at a bounded rate.
		tr, err = p.Trace(&TraceConfig{Rate: 3, Filter: Filter{A: End{Port: 40009}}})
		require.NoError(t, err)
		p.open(ap(fam.client, 40008))
		for range 3 {
			p.open(ap(fam.client, 40009))
		}
		tr.Stop()
		n := 0
		tr.Run(t.Context(), func(e Traced) { n++ })
		require.Equal(t, 3, n)
	})
}

// A capture of a node has what goes to it and comes from it, one of drops has every one, and nobody else's packets are in either.
func TestCaptureOfNodesAndDrops(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Mode = clienttable.ServerPerSession })
		var node, drops bytes.Buffer
		c, err := p.Capture(&node, &CaptureConfig{Filter: Filter{Nodes: []string{"n2"}}})
		require.NoError(t, err)
		d, err := p.Capture(&drops, &CaptureConfig{Filter: Filter{Dropped: true}})
		require.NoError(t, err)
		n := 0
		for i := range uint16(4) {
			if p.open(ap(fam.client, 40000+i)).Addr() == fam.n2 {
				n += 3
			}
		}
		require.Equal(t, 6, n)
		p.send(tcp(ap(fam.client, 1), ap(fam.vip, 81), "S", 1, 0, ""))
		p.send(udp(ap(fam.n1, 8080), ap(fam.client, 1), "of no session"))
		finish(t, c)
		finish(t, d)
		rows := tsharkFields(t, node.Bytes(), "frame.comment")
		require.Len(t, rows, n)
		for _, r := range rows {
			require.Regexp(t, `(to|from) node "n2"`, r[0])
		}
		rows = tsharkFields(t, drops.Bytes(), "frame.comment")
		require.Equal(t, [][]string{{"dropped: no-policy"}, {"dropped: node-alone"}}, rows)
		require.EqualValues(t, 2, d.Stats().Packets)
	})
}
