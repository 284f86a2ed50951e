package intercept

import "github.com/lbprim/lbprim/internal/enum"

var sideNames = enum.Of[Side]("intercept: side", "lan", "wan")

// String returns the name used in configurations.
func (s Side) String() string { return sideNames.String(s) }

// AppendText implements [encoding.TextAppender].
func (s Side) AppendText(b []byte) ([]byte, error) { return sideNames.Append(b, s) }

// MarshalText implements [encoding.TextMarshaler].
func (s Side) MarshalText() ([]byte, error) { return s.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Side) UnmarshalText(text []byte) error { return sideNames.Parse(s, text) }

var actionNames = enum.Of[Action]("intercept: action", "redirect", "pass-through", "discard", "deny")

// String returns the name used in configurations.
func (a Action) String() string { return actionNames.String(a) }

// AppendText implements [encoding.TextAppender].
func (a Action) AppendText(b []byte) ([]byte, error) { return actionNames.Append(b, a) }

// MarshalText implements [encoding.TextMarshaler].
func (a Action) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Action) UnmarshalText(text []byte) error { return actionNames.Parse(a, text) }

var peerNames = enum.Of[PeerKind]("intercept: peer kind", "any", "probe-only", "non-probe", "address")

// String returns the name used in configurations.
func (k PeerKind) String() string { return peerNames.String(k) }

// AppendText implements [encoding.TextAppender].
func (k PeerKind) AppendText(b []byte) ([]byte, error) { return peerNames.Append(b, k) }

// MarshalText implements [encoding.TextMarshaler].
func (k PeerKind) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *PeerKind) UnmarshalText(text []byte) error { return peerNames.Parse(k, text) }

var reasonNames = enum.Of[Reason]("intercept: reason", "none", "from-node", "known-flow", "in-path-rule", "load-balance-rule", "automatic-pool", "network-services", "no-rule", "no-row", "no-node", "severe-pressure", "at-limit", "cluster-nonsteady")

// String returns the name used in configurations.
func (r Reason) String() string { return reasonNames.String(r) }

// AppendText implements [encoding.TextAppender].
func (r Reason) AppendText(b []byte) ([]byte, error) { return reasonNames.Append(b, r) }

// MarshalText implements [encoding.TextMarshaler].
func (r Reason) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Reason) UnmarshalText(text []byte) error { return reasonNames.Parse(r, text) }

var clusterNames = enum.Of[ClusterState]("intercept: cluster state", "steady", "serial-partner-down", "parallel-peer-down", "pair-down")

// String returns the name used in configurations.
func (c ClusterState) String() string { return clusterNames.String(c) }

// AppendText implements [encoding.TextAppender].
func (c ClusterState) AppendText(b []byte) ([]byte, error) { return clusterNames.Append(b, c) }

// MarshalText implements [encoding.TextMarshaler].
func (c ClusterState) MarshalText() ([]byte, error) { return c.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *ClusterState) UnmarshalText(text []byte) error { return clusterNames.Parse(c, text) }
