package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/conf"
)

// TestReloadCapacity: another number of sessions and of clients remembered, and what happens to foreign packets and pings, are put in force by a
// reload, whole or not at all, and no session ends for it.
func TestReloadCapacity(t *testing.T) {
	text := "sessions: 30\nassociations: 40\n" + reloadFile
	x := newInProcess(t, text)
	defer func() { x.exporting.close() }()
	decoded := func(replace ...string) *config {
		c, err := decode([]byte(strings.NewReplacer(replace...).Replace(text)))
		require.NoError(t, err)
		return c
	}
	totals := func() [4]int {
		r := x.status().Totals
		return [4]int{r.Sessions, r.MaxSessions, r.Associations, r.MaxAssociations}
	}
	nodes := map[int]string{}
	for port := range 30 {
		nodes[port] = x.ask(t, "192.0.2.53", 40000+port)
	}
	require.Equal(t, "dropped", x.ask(t, "192.0.2.53", 50000))
	require.Equal(t, [4]int{30, 30, 0, 40}, totals())

	more := decoded("sessions: 30", "sessions: 1000", "associations: 40", "associations: 3000", "version: 1", "version: 1\nforeign: drop\nping-nodes: -1")
	require.Empty(t, fixedChanges(x.conf, more))
	// Room is made before all else, since that may fail, and given up last; nothing of it is left where another step fails.
	names := func(c *config) (names []string) {
		steps, _, err := x.steps(c)
		require.NoError(t, err)
		for _, s := range steps {
			names = append(names, s.Name)
		}
		return names
	}
	require.Equal(t, []string{"the number of sessions", "the number of associations", "the routes", "the policies", "the checks", "foreign packets and pings"}, names(more))
	less := decoded("sessions: 30", "sessions: 20", "associations: 40", "associations: 3000", "version: 1", "version: 1\nping-nodes: 2\nstate: {file: "+t.TempDir()+"/state}")
	require.Equal(t, []string{"the number of associations", "the routes", "the policies", "the checks", "the state file", "the number of sessions", "foreign packets and pings"}, names(less))
	for _, c := range []*config{more, less} {
		steps, _, err := x.steps(c)
		require.NoError(t, err)
		late := errors.New("too late")
		require.ErrorIs(t, conf.Transact(append(steps, conf.Step{Name: "late", Do: func() error { return late }, Undo: func() error { return nil }})), late)
		require.Equal(t, [4]int{30, 30, 0, 40}, totals())
		require.Equal(t, "passed", x.ask(t, "203.0.113.9", 1), "foreign")
	}

	require.NoError(t, x.apply(more))
	require.Equal(t, [4]int{30, 1000, 0, 3000}, totals())
	require.Equal(t, "dropped", x.ask(t, "203.0.113.9", 1), "foreign")
	require.NotEqual(t, "dropped", x.ask(t, "192.0.2.53", 50000))
	for range 100 {
		x.plane.Step(time.Now())
	}
	require.NoError(t, x.apply(decoded()))
	require.Equal(t, [4]int{31, 30, 0, 40}, totals())
	for port, node := range nodes {
		require.Equal(t, node, x.ask(t, "192.0.2.53", 40000+port))
	}
	require.Equal(t, "dropped", x.ask(t, "192.0.2.53", 50001))
}

// TestReloadRefused: what a reload cannot change is named, with what to do.
func TestReloadRefused(t *testing.T) {
	x := newInProcess(t, reloadFile)
	defer func() { x.exporting.close() }()
	c, err := decode([]byte(strings.Replace(reloadFile, "device: {", "device: {queues: 2, ", 1)))
	require.NoError(t, err)
	require.EqualError(t, x.apply(c), "device.queues cannot change while running, and nothing was changed: restart for that; with state.file, which is empty, sessions would outlive it")
	x.conf.State.File = t.TempDir() + "/state"
	require.ErrorContains(t, x.apply(c), "restart for that, which keeps sessions by way of state.file")

	// A state file that cannot be written is refused, another one is written at once.
	c, err = decode([]byte("state: {file: /proc/none/state}\n" + reloadFile))
	require.NoError(t, err)
	require.ErrorContains(t, x.apply(c), "state.file: ")
	// Nothing else of such a file has been done: the sessions of a node that it takes away go on.
	nodes := map[int]string{}
	for port := range 20 {
		nodes[port] = x.ask(t, "192.0.2.53", 41000+port)
	}
	less, err := decode([]byte("state: {file: /proc/none/state}\n" + strings.Replace(reloadFile, `{name: a, address: "10.0.0.1:53"}, `, "", 1)))
	require.NoError(t, err)
	require.ErrorContains(t, x.apply(less), "state.file: ")
	for port, node := range nodes {
		require.Equal(t, node, x.ask(t, "192.0.2.53", 41000+port))
	}
	c.State.File, c.State.Every = t.TempDir()+"/other", time.Minute
	require.NoError(t, x.apply(c))
	require.FileExists(t, c.State.File)
	require.Equal(t, c.State, x.conf.State)
}

// TestConsequences: what diff says of sessions is what becomes of them.
func TestConsequences(t *testing.T) {
	const a, b = `{name: a, address: "10.0.0.1:53"}`, `{name: b, address: "10.0.0.2:53", weight: 3}`
	for _, c := range []struct {
		replace []string
		want    []string
		after   string // what a question to a then gets
	}{
		{[]string{"weight: 3", "weight: 4"}, nil, "10.0.0.1"},
		{[]string{a + ", ", ""}, []string{"the sessions of dns/a end"}, "10.0.0.2"},
		{[]string{a, strings.Replace(a, ":53", `:53", admin: "disabled`, 1)}, []string{"the sessions of dns/a end, as it is disabled"}, "10.0.0.2"},
		{[]string{a, strings.Replace(a, ":53", `:53", admin: "draining`, 1)}, nil, "10.0.0.1"},
		{[]string{a, strings.Replace(a, "0.1", "0.9", 1)}, []string{"sessions of dns/a stay at 10.0.0.1:53 until they end; new ones go to 10.0.0.9:53"}, "10.0.0.1"},
		{
			[]string{a, `{name: a, address: "[2001:db8::1]:53"}`, b, `{name: b, address: "[2001:db8::2]:53"}`, "vip: 192.0.2.53", `vip: "2001:db8::53"`},
			[]string{"sessions of dns/a stay at 10.0.0.1:53 until they end, and it is not checked any more", "sessions of dns/b stay at 10.0.0.2:53 until they end, and it is not checked any more"}, "10.0.0.1",
		},
		{
			[]string{"  dns:\n", "  names:\n", "farm: dns", "farm: names"},
			[]string{"sessions of dns/a stay at 10.0.0.1:53 until they end, and it is not checked any more", "sessions of dns/b stay at 10.0.0.2:53 until they end, and it is not checked any more"}, "10.0.0.1",
		},
	} {
		t.Run(strings.Join(c.replace, " -> "), func(t *testing.T) {
			x := newInProcess(t, reloadFile)
			port := 40000
			for x.ask(t, "192.0.2.53", port) != "10.0.0.1" {
				port++
			}
			next, err := decode([]byte(strings.NewReplacer(c.replace...).Replace(reloadFile)))
			require.NoError(t, err)
			require.Equal(t, c.want, consequences(x.conf, next))
			require.NoError(t, x.apply(next))
			for range 3 {
				x.plane.Step(time.Now())
				require.Equal(t, c.after, x.ask(t, "192.0.2.53", port))
			}
			x.exporting.close()
		})
	}
}
