package intercept

import (
	"fmt"
	"strings"
)

func name(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("invalid(%d)", i)
}

func marshal(b []byte, names []string, i uint8, kind string) ([]byte, error) {
	if int(i) >= len(names) {
		return b, fmt.Errorf("intercept: %s %d: want one of %s", kind, i, strings.Join(names, ", "))
	}
	return append(b, names[i]...), nil
}

func parse(names []string, text []byte, kind string) (uint8, error) {
	for i, n := range names {
		if n == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("intercept: %s %q: want one of %s", kind, text, strings.Join(names, ", "))
}

func sideNames() []string { return []string{"lan", "wan"} }

// String returns the name used in configurations.
func (s Side) String() string { return name(sideNames(), uint8(s)) }

// AppendText implements [encoding.TextAppender].
func (s Side) AppendText(b []byte) ([]byte, error) { return marshal(b, sideNames(), uint8(s), "side") }

// MarshalText implements [encoding.TextMarshaler].
func (s Side) MarshalText() ([]byte, error) { return s.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Side) UnmarshalText(text []byte) error {
	i, err := parse(sideNames(), text, "side")
	if err == nil {
		*s = Side(i)
	}
	return err
}

func actionNames() []string { return []string{"redirect", "pass-through", "discard", "deny"} }

// String returns the name used in configurations.
func (a Action) String() string { return name(actionNames(), uint8(a)) }

// AppendText implements [encoding.TextAppender].
func (a Action) AppendText(b []byte) ([]byte, error) {
	return marshal(b, actionNames(), uint8(a), "action")
}

// MarshalText implements [encoding.TextMarshaler].
func (a Action) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Action) UnmarshalText(text []byte) error {
	i, err := parse(actionNames(), text, "action")
	if err == nil {
		*a = Action(i)
	}
	return err
}

func peerNames() []string { return []string{"any", "probe-only", "non-probe", "address"} }

// String returns the name used in configurations.
func (k PeerKind) String() string { return name(peerNames(), uint8(k)) }

// AppendText implements [encoding.TextAppender].
func (k PeerKind) AppendText(b []byte) ([]byte, error) {
	return marshal(b, peerNames(), uint8(k), "peer kind")
}

// MarshalText implements [encoding.TextMarshaler].
func (k PeerKind) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *PeerKind) UnmarshalText(text []byte) error {
	i, err := parse(peerNames(), text, "peer kind")
	if err == nil {
		*k = PeerKind(i)
	}
	return err
}

func reasonNames() []string {
	return []string{"none", "from-node", "known-flow", "in-path-rule", "load-balance-rule", "automatic-pool", "network-services", "no-rule", "no-row", "no-node", "severe-pressure", "at-limit", "cluster-nonsteady"}
}

// String returns the name used in configurations.
func (r Reason) String() string { return name(reasonNames(), uint8(r)) }

// AppendText implements [encoding.TextAppender].
func (r Reason) AppendText(b []byte) ([]byte, error) {
	return marshal(b, reasonNames(), uint8(r), "reason")
}

// MarshalText implements [encoding.TextMarshaler].
func (r Reason) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Reason) UnmarshalText(text []byte) error {
	i, err := parse(reasonNames(), text, "reason")
	if err == nil {
		*r = Reason(i)
	}
	return err
}

func clusterNames() []string {
	return []string{"steady", "serial-partner-down", "parallel-peer-down", "pair-down"}
}

// String returns the name used in configurations.
func (c ClusterState) String() string { return name(clusterNames(), uint8(c)) }

// AppendText implements [encoding.TextAppender].
func (c ClusterState) AppendText(b []byte) ([]byte, error) {
	return marshal(b, clusterNames(), uint8(c), "cluster state")
}

// MarshalText implements [encoding.TextMarshaler].
func (c ClusterState) MarshalText() ([]byte, error) { return c.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *ClusterState) UnmarshalText(text []byte) error {
	i, err := parse(clusterNames(), text, "cluster state")
	if err == nil {
		*c = ClusterState(i)
	}
	return err
}
