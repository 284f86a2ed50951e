package steering

import "github.com/lbprim/lbprim/internal/enum"

// A Metric is the rule by which a [Pool] chooses among the nodes that may take a new
// session. The zero Metric is LeastConns.
type Metric uint8

const (
	// LeastConns takes the node with the fewest open sessions per weight. Nodes that
	// are level take turns by weight, idle ones too.
	LeastConns Metric = iota
	// RoundRobin gives each node its turn; a round ends when all had theirs, and a
	// node of weight w takes part in w rounds of as many as the largest weight.
	RoundRobin
	// Cyclic gives each node its turn and takes no notice of weights.
	Cyclic
	// WeightedCyclic gives each node as many sessions in a row as its weight.
	WeightedCyclic
	// SmoothCyclic spreads the turns of WeightedCyclic as evenly as they go.
	SmoothCyclic
	// Bandwidth gives a node a share inverse to the octets it moved in the last
	// interval, see [Pool.AddOctets].
	Bandwidth
	// Response gives a node a share inverse to the moving average of its response
	// time, see [Pool.Observe].
	Response
	// Hash takes the client address as an index into the nodes now available. When
	// that list changes, clients of living nodes may move.
	Hash
	// MinMisses scores the client address with each node's address and takes the
	// highest score: when a node is lost only its clients move.
	MinMisses
	// PHash hashes the client address over the configured nodes and, if that node
	// cannot be used, over the usable ones: clients return when it does.
	PHash
	// Maglev takes Key.Hash through a weighted Maglev table.
	Maglev
	// Capacity takes Key.Hash through a small number of buckets, assigned in
	// proportion to the capacity of the nodes.
	Capacity
	// RandomTwo draws two nodes by weight and takes the one with fewer open sessions
	// per weight, as pressure and slow start leave it.
	RandomTwo
)

var metricNames = enum.Of[Metric]("steering: metric", "leastconns", "roundrobin", "cyclic", "weightedcyclic", "smoothcyclic", "bandwidth", "response",
	"hash", "minmisses", "phash", "maglev", "capacity", "randomtwo")

// String returns the name of m as used in configurations.
func (m Metric) String() string { return metricNames.String(m) }

// AppendText implements [encoding.TextAppender].
func (m Metric) AppendText(b []byte) ([]byte, error) { return metricNames.Append(b, m) }

// MarshalText implements [encoding.TextMarshaler].
func (m Metric) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Metric) UnmarshalText(text []byte) error { return metricNames.Parse(m, text) }

// weighted says whether the configured weights count.
func (m Metric) weighted() bool {
	switch m {
	case Cyclic, Hash, MinMisses, PHash:
		return false
	}
	return true
}

// hashed says whether the choice depends on the client alone.
func (m Metric) hashed() bool {
	switch m {
	case Hash, MinMisses, PHash, Maglev, Capacity:
		return true
	}
	return false
}
