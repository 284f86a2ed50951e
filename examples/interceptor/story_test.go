package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// CI machines are slow, and everything waits for conditions: the time is only what makes a failure end. Three probes that are late are no uplink's
// failure.
func patient(o options) options {
	o.packets, o.firstAnswer, o.probeTimeout, o.patience = 2, time.Second, 2*time.Second, 3*time.Minute
	return o
}

// together shows one story in several ways.
type together []display

func (d together) event(at time.Duration, text string) {
	for _, x := range d {
		x.event(at, text)
	}
}

func (d together) frame(f *frame) {
	for _, x := range d {
		x.frame(f)
	}
}

func (d together) close() {
	for _, x := range d {
		x.close()
	}
}

// ends are the states at the end of each act, from the output of -json.
func ends(t *testing.T, out string) (all []*frame, r *report) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(out))
	for d.More() {
		var l jsonLine
		require.NoError(t, d.Decode(&l))
		if l.State != nil && l.State.Over {
			all = append(all, l.State)
		}
		if l.Report != nil {
			r = l.Report
		}
	}
	return all, r
}

// requireLive holds what was shown at the end of each act to what the schedule does.
func requireLive(t *testing.T, all []*frame) {
	t.Helper()
	require.Len(t, all, phases)
	down := func(act, balancer int) bool { return all[act-1].Balancers[balancer].State == "down" }
	require.True(t, down(2, 0) && down(3, 0) && down(3, 1) && down(5, 2))
	require.False(t, down(1, 0) || down(2, 1) || down(4, 0) || down(6, 2))
	// grew is what was counted in an act.
	grew := func(act int, value func(f *frame) uint64) uint64 {
		before := uint64(0)
		if act > 1 {
			before = value(all[act-2])
		}
		return value(all[act-1]) - before
	}
	redirected := func(i int) func(f *frame) uint64 {
		return func(f *frame) uint64 { return f.Balancers[i].Redirected }
	}
	way := func(i int) func(f *frame) uint64 { return func(f *frame) uint64 { return f.Ways[i].Packets } }
	const mpls, internet, cable = 0, 1, 3
	require.NotZero(t, grew(1, redirected(0)), "b1 is the first on its link")
	require.Zero(t, grew(1, redirected(1)), "b2 has nothing to do behind it")
	require.NotZero(t, grew(2, redirected(1)), "b2 goes on for b1")
	require.NotZero(t, grew(3, way(cable)), "the link is a cable")
	require.Zero(t, grew(3, redirected(0))+grew(3, func(f *frame) uint64 { return f.Balancers[0].Bypassed }), "b1 is down all the time")
	require.NotZero(t, grew(4, redirected(0)), "b1 is back")
	require.NotZero(t, grew(5, redirected(3)), "b4 goes on for b3")
	require.Zero(t, grew(5, way(internet)), "mpls is preferred while it is up")
	require.NotZero(t, grew(6, way(internet)), "mpls is down")
	require.NotZero(t, grew(7, func(f *frame) (n uint64) {
		for _, b := range f.Balancers {
			n += b.Relayed
		}
		return n
	}), "no uplink is left")
	require.NotZero(t, grew(8, way(mpls)), "mpls is back")
	for act := 1; act <= phases; act++ {
		require.NotZero(t, grew(act, func(f *frame) uint64 { return f.Answered }), "conversations go on in act %d", act)
		require.NotZero(t, grew(act, func(f *frame) uint64 { return f.Nodes[0].Packets + f.Nodes[1].Packets }), "nodes work in act %d", act)
	}
}

// Balancers that ask nobody send the two directions of a connection different ways, and the verification notices.
func TestVerificationNotices(t *testing.T) {
	testenv.NeedNetns(t)
	var out bytes.Buffer
	r, err := tell(t.Context(), patient(options{lonely: true}), &lines{w: &out})
	require.NoErrorf(t, err, "%s", &out)
	require.False(t, r.Verified)
	require.Contains(t, strings.Join(r.untrue(), "\n"), "went through a node, in both directions")
	r.text(&out)
	require.Contains(t, out.String(), "  NO  web and dns went through a node")
	require.NotContains(t, out.String(), "\x1b")
}

func someFrame(n int) *frame {
	f := &frame{Seconds: float64(n) / 4, Act: 1 + n/10, Title: "something", Waiting: "b1 knows 3 members", Answered: uint64(10 * n)}
	for i := range balancers {
		f.Balancers = append(f.Balancers, balancerRow{Name: balancerName(i), Link: links[i/2], State: "serial-partner-down", Redirected: uint64(1000 * n), Bypassed: 99_999, Relayed: 99_999, Denied: 999_999, Learned: 9_999_999})
	}
	f.Nodes = []counter{{Name: "n1", Packets: uint64(4 * n)}, {Name: "n2"}}
	f.Ways = []counter{{Name: "mpls", Down: true, Packets: 7}, {Name: "internet"}}
	return f
}

func TestScreenFitsAndStays(t *testing.T) {
	var out bytes.Buffer
	s := &screen{}
	s.on.W = &out
	s.event(0, "before the first frame")
	require.Empty(t, out.String())
	for i := range 30 {
		s.frame(someFrame(i))
		s.event(time.Second, "an event")
		text := s.text()
		require.Len(t, text, screenHeight)
		for _, line := range text {
			require.LessOrEqual(t, len(line), 80, "%q", line)
		}
	}
	require.Contains(t, strings.Join(s.text(), "\n"), "29000 4000/s", "a thousand every quarter of a second")
	require.Contains(t, strings.Join(s.text(), "\n"), "nodes: n1 116 16/s, n2 0 0/s\nout:   mpls down 7, internet 0 0/s")
	s.close()
	require.True(t, strings.HasSuffix(out.String(), "\x1b[?25h\n"), "the cursor is back")
}

func TestLinesArePlain(t *testing.T) {
	var out bytes.Buffer
	d := newDisplay(&out, false)
	d.event(1500*time.Millisecond, "something happened")
	for i := range 12 {
		d.frame(someFrame(i))
	}
	over := someFrame(12)
	over.Over = true
	d.frame(over)
	d.close()
	require.NotContains(t, out.String(), "\x1b")
	text := strings.Split(out.String(), "\n")
	require.Equal(t, "  1.5s  something happened", text[0])
	require.Equal(t, "  1.0s    redirected 16000 (0/s), bypassed 399996 (0/s), relayed 399996 (0/s); out: mpls down 7, internet 0 0/s", text[1])
	require.Equal(t, "  2.0s    redirected 32000 (16000/s), bypassed 399996 (0/s), relayed 399996 (0/s); out: mpls down 7, internet 0 0/s", text[2])
	require.Contains(t, text[4], "b1   east serial-partner-down 12000")
}

func TestPackets(t *testing.T) {
	for _, f := range newFlows(0) {
		for _, p := range []packet{
			{src: f.src, dst: f.dst, tcp: true, syn: true, seq: 1}, {src: f.src, dst: f.dst, tcp: true, rst: true, seq: 7}, {src: f.dst, dst: f.src, seq: 1 << 31},
		} {
			b, err := p.bytes()
			require.NoError(t, err)
			q, err := parse(b)
			require.NoError(t, err)
			require.Equal(t, p, q)
			for n := range b {
				_, err := parse(b[:n])
				require.Error(t, err, "%d bytes", n)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-h"}, 0, "What it shows:"},
		{[]string{"-packets", "1"}, 2, "-packets 1: want 2 to 1000"},
		{[]string{"-every", "-1s"}, 2, "-every -1s: want 0s to 1h"},
		{[]string{"now"}, 2, `"now": want no arguments`},
		{[]string{"-bogus"}, 2, "bogus"},
	} {
		var out bytes.Buffer
		require.Equal(t, c.status, run(t.Context(), c.args, &out, &out))
		require.Contains(t, out.String(), c.want)
	}
}
