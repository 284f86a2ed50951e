package steering

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// ZeroWeight, as the Weight of a Node, is a weight of zero: no metric gives the node a
// new session, and it keeps the ones it has. (Weight 0 is the default weight of 1.)
const ZeroWeight = -1

// Limits of a configuration.
const (
	MaxNodes    = 1<<15 - 1
	MaxWeight   = 1_000_000
	MaxCapacity = 1_000_000_000
)

// A Node describes a service node. The zero values of all fields but Name are useful.
// Nodes are plain data: they may be copied and compared.
type Node struct {
	// Name is the identity of the node within its Pool, over any number of Set calls.
	Name string
	// Addr is where the node listens. Port 0 stands for the port the client asked for.
	Addr netip.AddrPort
	// Weight is the node's share of new sessions, relative to the others. 0 stands for
	// the default, 1; see [ZeroWeight].
	Weight int
	// MaxSessions limits the sessions open at a time. 0 is no limit. It refuses new
	// sessions only.
	MaxSessions int
	// Capacity is the number of optimised connections the node can handle, for the
	// Capacity metric. Either all nodes of a pool state one or none does; then their
	// weights take its place.
	Capacity int
	// Backup nodes get new sessions only when no other node can, see Config.Backup.
	Backup bool
	// Admin is what the operator wants of the node.
	Admin AdminState
	// RecoveryTime is how long the node gets nothing after it came up again. 0 stands
	// for Config.RecoveryTime, a negative one for none.
	RecoveryTime time.Duration
	// WarmUp is how long the node's share then rises to its full weight. 0 stands for
	// Config.SlowStart, a negative one for none.
	WarmUp time.Duration
}

func (n *Node) weight() int {
	switch n.Weight {
	case 0:
		return 1
	case ZeroWeight:
		return 0
	}
	return n.Weight
}

// An AdminState is what the operator wants of a node. The zero AdminState is Enabled.
type AdminState uint8

const (
	// Enabled nodes take part.
	Enabled AdminState = iota
	// Draining nodes keep their sessions and get no new one from anybody, not even from
	// a client that belongs to them (connections shutdown).
	Draining
	// SessionsShutdown nodes get no new clients; a client with a live session may open
	// more.
	SessionsShutdown
	// Disabled nodes get nothing, and keep nothing.
	Disabled
)

var adminNames = enum.Of[AdminState]("steering: admin state", "enabled", "draining", "sessions-shutdown", "disabled")

// String returns the name of s as used in configurations.
func (s AdminState) String() string { return adminNames.String(s) }

// AppendText implements [encoding.TextAppender].
func (s AdminState) AppendText(b []byte) ([]byte, error) { return adminNames.Append(b, s) }

// MarshalText implements [encoding.TextMarshaler].
func (s AdminState) MarshalText() ([]byte, error) { return s.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *AdminState) UnmarshalText(text []byte) error { return adminNames.Parse(s, text) }

// A NodeID is a handle for a node of a [Pool], unique among all pools that share an
// [IDs]. It is never given out again. The zero NodeID names no node.
type NodeID uint32

// IDs gives out node ids. Pools that share one never use the same id, so that an id
// says which pool it belongs to. The zero IDs is ready for use; it must not be copied
// and is safe for concurrent use.
type IDs struct{ last atomic.Uint32 }

// Next returns an id that was never returned before, or 0 when none is left.
func (a *IDs) Next() NodeID {
	for {
		last := a.last.Load()
		if last+1 == 0 {
			return 0
		}
		if a.last.CompareAndSwap(last, last+1) {
			return NodeID(last + 1)
		}
	}
}

// A NodeStatus is what a [Pool] knows of a node at one moment.
type NodeStatus struct {
	Node Node // as configured
	// Up is the health reported with SetUp.
	Up bool
	// Advice is what was last given to Pool.Advise.
	Advice Advice
	// State says whether the node may take a new pass-through session, or what
	// prevents it.
	State Availability
	// Pressure is the level in force.
	Pressure Level
	// Sessions are open now; Total have been counted since the node was added.
	Sessions int64
	Total    uint64
	// Share is the node's part of new sessions as far as weights decide it: 1 is all
	// of them. It takes no notice of limits and session counts.
	Share float64
	// Warmth is how far the slow start has come, from above 0 to 1.
	Warmth float64
	// ResponseTime is the moving average fed by Observe, 0 without samples.
	ResponseTime time.Duration
	// Octets moved in the last complete interval.
	Octets uint64
}

// An Availability says whether a node may take a new session.
type Availability uint8

const (
	// Available nodes may take new sessions.
	Available Availability = iota
	// DownNow nodes failed their health check.
	DownNow
	// AdminDisabled, AdminDraining and AdminSessionsShutdown follow the operator's wish.
	AdminDisabled
	AdminDraining
	AdminSessionsShutdown
	// WeightIsZero nodes have no share.
	WeightIsZero
	// Recovering nodes came up less than their recovery time ago.
	Recovering
	// UnderSeverePressure nodes take no new pass-through session.
	UnderSeverePressure
	// AtLimit nodes have as many sessions as they may.
	AtLimit
)

var availabilityNames = enum.Of[Availability]("steering: availability", "available", "down", "disabled", "draining", "sessions-shutdown", "weight-zero", "recovering",
	"severe-pressure", "at-limit")

// String returns the name of a.
func (a Availability) String() string { return availabilityNames.String(a) }

// AppendText implements [encoding.TextAppender].
func (a Availability) AppendText(b []byte) ([]byte, error) { return availabilityNames.Append(b, a) }

// MarshalText implements [encoding.TextMarshaler].
func (a Availability) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Availability) UnmarshalText(text []byte) error { return availabilityNames.Parse(a, text) }
