package cluster_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/intercept"
)

const tableFile = "testdata/failures.txt"

const tableHead = `# What becomes of new and of known flows when members are down: topology, who is down, allow-failure, and then
#
#   optimised   a SYN from the LAN that the load-balance rules redirect
#   passed      a SYN that an in-path rule lets pass, for the network services table
#   udp         a datagram, for the network services table
#   old         a packet of a connection that was there before the balancers, for the network services table
#   known       a packet of a flow that has a node already, here or at another member
#
# "headers" says that rules look at headers only. It is the same for both families and for nodes on either side.
#
`

// tableMembers are members on the links east and west.
func tableMembers(t cluster.Topology) []cluster.Peer {
	switch t {
	case cluster.Serial:
		return []cluster.Peer{{Name: "e1", Pair: "east"}, {Name: "e2", Pair: "east"}}
	case cluster.Parallel:
		return []cluster.Peer{{Name: "e1"}, {Name: "w1"}}
	case cluster.Quad:
		return []cluster.Peer{{Name: "e1", Pair: "east"}, {Name: "e2", Pair: "east"}, {Name: "w1", Pair: "west"}, {Name: "w2", Pair: "west"}}
	}
	return []cluster.Peer{{Name: "e1"}}
}

// fates are the columns of a line: by the engine of e1, with a node on a side.
func fates(t *testing.T, state intercept.ClusterState, allow bool, side intercept.Side, v6 bool) (columns []string) {
	t.Helper()
	host := func(n byte) netip.Addr {
		if v6 {
			return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0xd, 3: 0xb8, 15: n})
		}
		return netip.AddrFrom4([4]byte{192, 0, 2, n})
	}
	e, err := intercept.New(&intercept.Config{
		AllowFailure: allow, Nodes: []intercept.Node{{Node: steering.Node{Name: "sh1", Addr: netip.AddrPortFrom(host(9), 0)}, Side: side}},
		InPath:   []intercept.InPathRule{{Match: intercept.Match{DstPort: intercept.Port(22)}, Action: intercept.PassThrough}},
		Services: []intercept.Row{{Name: "all"}},
	})
	require.NoError(t, err)
	id, ok := e.ID("sh1")
	require.True(t, ok)
	e.SetCluster(state)
	packet := func(protocol uint8, port uint16) intercept.Packet {
		return intercept.Packet{Src: netip.AddrPortFrom(host(1), 4711), Dst: netip.AddrPortFrom(host(2), port), Protocol: protocol}
	}
	optimised, passed, udp, old, known := packet(6, 80), packet(6, 22), packet(17, 53), packet(6, 8080), packet(6, 80)
	optimised.SYN, passed.SYN = true, true
	known.Known = id
	for _, p := range []intercept.Packet{optimised, passed, udp, old, known} {
		d := e.Decide(&p)
		fate := "bypass"
		if d.Action == intercept.Redirect {
			require.Equal(t, id, d.Node)
			require.Equal(t, side, d.Side)
			if fate = "redirect"; d.Reason == intercept.KnownFlow {
				fate = "continue"
			}
			if d.HeaderOnly {
				fate += ", headers"
			}
		}
		columns = append(columns, fate)
	}
	return columns
}

// TestFailureTable: every set of members that can be down, with each topology, against the table. -update writes it anew.
func TestFailureTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(tableHead)
	fmt.Fprintf(&b, "%-9s %-9s %-5s %-18s %-18s %-18s %-18s %s\n", "topology", "down", "allow", "optimised", "passed", "udp", "old", "known")
	for _, topology := range []cluster.Topology{cluster.Single, cluster.Serial, cluster.Parallel, cluster.Quad} {
		members := tableMembers(topology)
		for set := range 1 << (len(members) - 1) { // e1 is the one that decides
			var down []string
			for i, m := range members[1:] {
				if set>>i&1 != 0 {
					down = append(down, m.Name)
				}
			}
			state := cluster.StateOf(members, func(name string) bool { return !slices.Contains(down, name) })
			for _, allow := range []bool{false, true} {
				columns := fates(t, state, allow, intercept.LAN, false)
				for i := range 4 {
					require.Equal(t, columns, fates(t, state, allow, intercept.Side(i%2), i/2 == 1))
				}
				who, may := strings.Join(down, "+"), "no"
				if who == "" {
					who = "-"
				}
				if allow {
					may = "yes"
				}
				fmt.Fprintf(&b, "%-9s %-9s %-5s %-18s %-18s %-18s %-18s %s\n", topology, who, may, columns[0], columns[1], columns[2], columns[3], columns[4])
			}
		}
	}
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(tableFile, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(tableFile)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}
