package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
)

// Nodes that are pressed by their sessions get no new one, keep those they have, and count in full again once the file has no pressure any more.
func TestPressure(t *testing.T) {
	text := strings.NewReplacer("mode: server-per-session", "mode: server-per-session\n    pressure: {sessions: {high: 0.25, severe: 0.5}}",
		`"10.0.0.1:53"`, `"10.0.0.1:53", max-sessions: 4`, `"10.0.0.2:53", weight: 3`, `"10.0.0.2:53", max-sessions: 4`).Replace(reloadFile)
	x := newInProcess(t, text)
	state := func() (all []string) {
		for _, n := range x.status().Farms[0].Nodes {
			all = append(all, n.State.String()+", "+n.Pressure.String())
		}
		return all
	}
	require.Contains(t, []string{"10.0.0.1", "10.0.0.2"}, x.ask(t, "192.0.2.53", 40000))
	x.pressOnce()
	require.ElementsMatch(t, []string{"available, high", "available, normal"}, state())
	nodes := map[int]string{}
	for port := 40001; port < 40004; port++ {
		nodes[port] = x.ask(t, "192.0.2.53", port)
	}
	x.pressOnce()
	require.Contains(t, state(), "severe-pressure, severe")
	for _, n := range x.status().Farms[0].Nodes {
		if n.Pressure == steering.Severe {
			require.Regexp(t, `^under severe pressure: \d of 4 sessions$`, n.Reason)
		}
	}
	for port := 40004; port < 40006; port++ {
		x.ask(t, "192.0.2.53", port)
	}
	x.pressOnce()
	require.Equal(t, []string{"severe-pressure, severe", "severe-pressure, severe"}, state())
	require.Equal(t, "dropped", x.ask(t, "192.0.2.53", 41000))
	for port, node := range nodes {
		require.Equal(t, node, x.ask(t, "192.0.2.53", port), "it keeps its sessions")
	}
	c, err := decode([]byte(strings.Replace(text, "    pressure: {sessions: {high: 0.25, severe: 0.5}}\n", "", 1)))
	require.NoError(t, err)
	require.NoError(t, x.apply(c))
	x.pressOnce()
	require.Equal(t, []string{"available, normal", "available, normal"}, state())
	x.plane.Step(time.Now())
	require.Contains(t, []string{"10.0.0.1", "10.0.0.2"}, x.ask(t, "192.0.2.53", 41001))
	// By response times: what is left is a level of its own.
	p := (&pressure{Response: &periods{High: 80 * time.Millisecond, Severe: 800 * time.Millisecond}}).library()
	var g steering.Gauger
	for _, s := range []struct {
		ms   int
		want steering.Level
	}{{79, steering.Normal}, {80, steering.High}, {71, steering.High}, {69, steering.Normal}, {801, steering.Severe}, {701, steering.Severe}, {699, steering.High}, {0, steering.Normal}} {
		require.Equal(t, s.want, g.Update(&p, steering.Gauges{Latency: time.Duration(s.ms) * time.Millisecond}), s.ms)
	}
}
