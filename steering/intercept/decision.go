package intercept

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/steering"
)

// A Packet is what the balancer knows of a packet it must decide about.
type Packet struct {
	Src, Dst netip.AddrPort // of one family
	Protocol uint8          // 6 for TCP, 17 for UDP
	VLAN     uint16         // 0 is untagged
	// From is the side the packet came in on.
	From Side
	// SYN is set for the first packet of a TCP connection.
	SYN bool
	// Peer is the address of the remote peer in the SYN's autodiscovery probe. It is
	// invalid where there is no probe.
	Peer netip.Addr
	// Sender is the node that sent the packet, 0 if none did.
	Sender steering.NodeID
	// Known is the node the caller's flow table has for this flow, 0 if none.
	Known steering.NodeID
}

// A Reason says what decided.
type Reason uint8

const (
	// None: nothing was decided; the zero Reason.
	None Reason = iota
	// FromNode: a node sent the packet.
	FromNode
	// KnownFlow: the caller's table knows the flow.
	KnownFlow
	// ByInPathRule: the in-path rule says so.
	ByInPathRule
	// ByLoadBalanceRule: the load-balance rule says so.
	ByLoadBalanceRule
	// ByAutomaticPool: no load-balance rule matched.
	ByAutomaticPool
	// ByServices: the network services table says so.
	ByServices
	// NoRule: no load-balance rule matched and the automatic pool has no node to give.
	NoRule
	// NoRow: no row of the network services table matched.
	NoRow
	// NoNode: no target is up and enabled.
	NoNode
	// SeverePressure: every target is under severe pressure.
	SeverePressure
	// AtLimit: the target has as many sessions as it may.
	AtLimit
	// ClusterNonsteady: a member of the cluster is down.
	ClusterNonsteady
)

// A Decision is what to do with a packet, and with the flow it begins.
type Decision struct {
	Action Action // what to do
	// Node and Side are where the flow goes, with Redirect.
	Node steering.NodeID
	Side Side
	// Optimized flows were redirected by a load-balance rule or the automatic pool.
	Optimized bool
	// Counted flows must be given back with [Engine.End] once.
	Counted bool
	// Peer is the remote peer the flow counts for.
	Peer netip.Addr
	// HeaderOnly asks for rules that look at headers only, as the cluster is not
	// steady (see steering/path).
	HeaderOnly bool
	Reason     Reason
	// Rule is the name of the rule or row that decided, "" if it has none.
	Rule string
}

// An Explanation is a Decision and the way to it. It comes from the code of
// [Engine.Decide] itself.
type Explanation struct {
	Packet   Packet // that was asked about
	Decision Decision
	Steps    []string // for people, in order
}

// String formats e for people.
func (e Explanation) String() string {
	d := e.Decision
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", d.Action, d.Reason)
	if d.Rule != "" {
		fmt.Fprintf(&b, " %q", d.Rule)
	}
	if d.Node != 0 {
		fmt.Fprintf(&b, ", node %d on the %s side", d.Node, d.Side)
	}
	for _, s := range e.Steps {
		b.WriteString("\n  " + s)
	}
	return b.String()
}

// A tracer collects the steps of a decision that is only asked about; nil does not.
type tracer struct{ e *Explanation }

func (t *tracer) step(format string, args ...any) {
	t.e.Steps = append(t.e.Steps, fmt.Sprintf(format, args...))
}

// miss says which field of m does not match, "" if all do.
func (m *Match) miss(p *Packet) string {
	switch {
	case m.Src.IsValid() && !m.Src.Contains(p.Src.Addr().Unmap()):
		return "source"
	case m.Dst.IsValid() && !m.Dst.Contains(p.Dst.Addr().Unmap()):
		return "destination"
	case !m.DstPort.Contains(p.Dst.Port()):
		return "destination port"
	case m.VLAN == Untagged && p.VLAN != 0, m.VLAN > 0 && int(p.VLAN) != m.VLAN:
		return "VLAN"
	}
	return ""
}

func (r *Rule) miss(p *Packet) string {
	if field := r.Match.miss(p); field != "" {
		return field
	}
	probe := p.Peer.IsValid()
	switch {
	case r.Peer == ProbeOnly && !probe, r.Peer == NonProbe && probe,
		r.Peer == PeerAddress && (!probe || !r.Peers.Contains(p.Peer.Unmap().WithZone(""))):
		return "peer"
	}
	return ""
}
