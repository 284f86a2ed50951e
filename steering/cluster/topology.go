package cluster

import (
	"errors"
	"fmt"

	"github.com/lbprim/lbprim/internal/enum"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// A Topology is how the balancers of a cluster stand to each other. The zero Topology is
// Single.
type Topology uint8

const (
	// Single: one balancer, alone.
	Single Topology = iota
	// Serial: a failover pair on the same links.
	Serial
	// Parallel: balancers on links of their own.
	Parallel
	// Quad: two failover pairs, each on links of its own; or more.
	Quad
)

var topologyNames = enum.Of[Topology]("cluster: topology", "single", "serial", "parallel", "quad")

// String returns the name used in configurations.
func (t Topology) String() string { return topologyNames.String(t) }

// AppendText implements [encoding.TextAppender].
func (t Topology) AppendText(b []byte) ([]byte, error) { return topologyNames.Append(b, t) }

// MarshalText implements [encoding.TextMarshaler].
func (t Topology) MarshalText() ([]byte, error) { return t.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Topology) UnmarshalText(text []byte) error { return topologyNames.Parse(t, text) }

// validTopology says what is wrong with the members.
func validTopology(t Topology, self string, members []Peer) error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, &steering.FieldError{Field: "cluster.Config." + field, Value: value, Want: want})
	}
	names, pairs := map[string]bool{}, map[string]int{}
	for i, m := range members {
		if m.Name == "" || len(m.Name) > maxNodeName || names[m.Name] {
			bad(fmt.Sprintf("Members[%d].Name", i), fmt.Sprintf("%q", m.Name), "a name of its own")
		}
		names[m.Name] = true
		if m.Pair != "" {
			pairs[m.Pair]++
		}
	}
	if len(members) > 0 && !names[self] {
		bad("Members", fmt.Sprintf("%d without %q", len(members), self), "this balancer among them")
	}
	paired := 0
	for name, n := range pairs {
		if n != 2 {
			bad("Members", fmt.Sprintf("%d of pair %q", n, name), "two of each pair")
		}
		paired += n
	}
	count := fmt.Sprintf("%d, %d of them in %d pairs", len(members), paired, len(pairs))
	switch t {
	case Single:
		if len(members) > 1 || paired > 0 {
			bad("Members", count, "this one or none with topology single")
		}
	case Serial:
		if len(members) != 2 || paired != 2 {
			bad("Members", count, "the two of a pair with topology serial")
		}
	case Parallel:
		if len(members) < 2 || paired > 0 {
			bad("Members", count, "two or more without pairs with topology parallel")
		}
	case Quad:
		if len(pairs) < 2 || paired != len(members) {
			bad("Members", count, "two pairs or more, and nobody else, with topology quad")
		}
	default:
		bad("Topology", uint8(t), "single, serial, parallel or quad")
	}
	return errors.Join(errs...)
}

// stateOf says what it means that only those of up are there.
func stateOf(members []Peer, up func(name string) bool) intercept.ClusterState {
	left := map[string]int{} // of each pair
	for _, m := range members {
		if m.Pair != "" && up(m.Name) {
			left[m.Pair]++
		}
	}
	state := intercept.Steady
	worse := func(s intercept.ClusterState) { state = max(state, s) }
	for _, m := range members {
		switch {
		case up(m.Name):
		case m.Pair == "":
			worse(intercept.ParallelPeerDown)
		case left[m.Pair] == 0:
			worse(intercept.PairDown)
		default:
			worse(intercept.SerialPartnerDown)
		}
	}
	return state
}
