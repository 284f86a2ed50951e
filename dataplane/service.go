package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/enum"
	"github.com/lbprim/lbprim/steering"
)

// Service is what a policy resolves to: which nodes serve, how clients are remembered, and
// how packets reach a node. It is plain data and must not be changed once it is
// part of a table given to a [Plane]; a table with a changed copy under the same name
// takes its place without disturbing sessions.
type Service struct {
	// Name is the service's identity over any number of tables. Required.
	Name string
	// Pool has the nodes. Required. All pools of a Plane share one steering.IDs, or are
	// one pool.
	Pool *steering.Pool
	// Mode says how clients are remembered. Default: an entry per session, and the same
	// node for a client's next session. A session counts for its node (least connections, MaxSessions,
	// draining) for as long as it is remembered: after the end of a TCP connection that is the idle time of
	// Ageing, or with the modes that remove on end the linger.
	Mode clienttable.Mode
	// Forward is how packets reach the node. Default NAT.
	Forward Forward

	// Locals are the balancer's own addresses, of the nodes' family, that take the place of clients' with
	// FullNAT; required there. Packets to them must reach the balancer, and nobody else may
	// use their ports from 1024 on.
	Locals []netip.Addr
	// Tunnel is how packets are put into others with Tunnelled. Default: IP in IP.
	Tunnel Tunnel
	// MTU is the largest packet that the way to the nodes takes. Where it is set, and with
	// Tunnelled, the MSS of connections is lowered to what fits, and senders of larger packets are told, or these sent in
	// fragments. Set it where that way is narrower than that of the clients, on TUN above all: there the host tells senders of
	// nodes' addresses, which they do not know. With Tunnelled, a router on the way that takes less is believed for ten minutes, if its
	// errors, which go to one of Config.Addrs, pass the Plane. 576 to 65535. Default with Tunnelled 1500, else none.
	MTU int

	// Ageing says for how long sessions are remembered. Default: idle for a minute, 5 s until a TCP
	// handshake is complete.
	Ageing clienttable.Ageing
	// ClientBits4 and ClientBits6 group clients for associations: clients with these leading bits in
	// common count as one. Default: all bits; negative: none, so that all clients are one.
	ClientBits4, ClientBits6 int

	// Static binds clients to nodes. Sessions that there are stay where they are when it changes, as with every change
	// of a service. Default: none.
	Static []Static

	// MinNodes is how many nodes must be usable for the service to take new sessions; below that it is silent, and the sessions it
	// has go on. Default 1; at most steering.MaxNodes.
	MinNodes int

	// ExportFlows has the flows of this service exported, as Config.Flows says.
	ExportFlows bool

	// MidStream is what happens to a TCP packet that starts no connection and for which none is known. Default Reset.
	MidStream MidStream
	// ServerLost is what happens to a client's packet of a TCP connection whose node was lost, which is known for as long as the
	// connection would have been remembered. Default Reset.
	ServerLost MidStream

	// Delay chooses the node after reading the beginning of a TCP connection. It needs NAT or FullNAT. Default: nil,
	// the first packet decides.
	Delay *Delay
}

// Forward is how packets reach a node.
type Forward uint8

const (
	// NAT rewrites the destination, and the source of the answers, which must pass the
	// balancer.
	NAT Forward = iota
	// FullNAT rewrites the source, too, to an address and port of the balancer's own, so that the
	// answers return whatever the node's default route is.
	FullNAT
	// DSR sends frames to the node's MAC and leaves the packet alone: the node has the virtual
	// address itself and answers past the balancer. It needs devices of Ethernet frames.
	DSR
	// Tunnelled puts packets into others for the node, which answers past the balancer.
	Tunnelled
	// Route sends packets on, to no node and without a session, unchanged but for the DSCP that Intercept.Paths says.
	Route
)

var forwardNames = enum.Of[Forward]("dataplane: forwarding", "nat", "fullnat", "dsr", "tunnel", "route")

// direct reports whether nodes answer past the balancer.
func (f Forward) direct() bool { return f == DSR || f == Tunnelled }

// String returns the name of f.
func (f Forward) String() string { return forwardNames.String(f) }

// AppendText implements encoding.TextAppender.
func (f Forward) AppendText(b []byte) ([]byte, error) { return forwardNames.Append(b, f) }

// MarshalText implements encoding.TextMarshaler.
func (f Forward) MarshalText() ([]byte, error) { return f.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Forward) UnmarshalText(text []byte) error { return forwardNames.Parse(f, text) }

// MidStream is what happens to a TCP packet to a virtual address that is in the middle of a connection without a
// node: one that is unknown, or whose node was lost.
type MidStream uint8

const (
	// Reset answers with a reset that the client must believe.
	Reset MidStream = iota
	// Silent drops it.
	Silent
	// Reselect gives it to a node as if it began a session.
	Reselect
)

var midStreamNames = enum.Of[MidStream]("dataplane: mid-stream action", "reset", "silent", "reselect")

// String returns the name of m.
func (m MidStream) String() string { return midStreamNames.String(m) }

// AppendText implements encoding.TextAppender.
func (m MidStream) AppendText(b []byte) ([]byte, error) { return midStreamNames.Append(b, m) }

// MarshalText implements encoding.TextMarshaler.
func (m MidStream) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MidStream) UnmarshalText(text []byte) error { return midStreamNames.Parse(m, text) }

// ErrInvalid is wrapped by every fault of a configuration.
var ErrInvalid = errors.New("dataplane: invalid configuration")

func invalid(field string, value any, want string) error {
	return fmt.Errorf("%w: %s = %v: want %s", ErrInvalid, field, value, want)
}

// resolve returns s with its zero fields filled in, or all its faults.
func (s *Service) resolve() (Service, error) {
	r := *s
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, invalid(fmt.Sprintf("Service %q.%s", s.Name, field), value, want))
	}
	if r.Name == "" {
		bad("Name", `""`, "a name")
	}
	if r.Pool == nil && r.Forward != Route {
		bad("Pool", nil, "a pool of nodes")
	}
	if int(r.Forward) >= forwardNames.Len() {
		bad("Forward", uint8(r.Forward), "a mode of this package")
	}
	if r.MinNodes < 0 || r.MinNodes > steering.MaxNodes {
		bad("MinNodes", r.MinNodes, fmt.Sprintf("1 to %d, or 0 for 1", steering.MaxNodes))
	}
	if int(r.MidStream) >= midStreamNames.Len() {
		bad("MidStream", uint8(r.MidStream), "reset, silent or reselect")
	}
	if int(r.ServerLost) >= midStreamNames.Len() {
		bad("ServerLost", uint8(r.ServerLost), "reset, silent or reselect")
	}
	newStatics(r.Static, bad)
	r.Static = slices.Clone(r.Static)
	if _, err := clienttable.NewTimers(&r.Ageing); err != nil {
		errs = append(errs, fmt.Errorf("%w: Service %q.Ageing: %w", ErrInvalid, s.Name, err))
	}
	if r.Ageing.NoUDP && !r.Forward.direct() {
		bad("Ageing.NoUDP", true, "false: without an entry, answers cannot be translated back")
	}
	if r.Ageing.CloseAtAgeing != clienttable.CloseNone && r.Forward.direct() {
		bad("Ageing.CloseAtAgeing", r.Ageing.CloseAtAgeing, "none: where nodes answer past the balancer, their numbers are not known")
	}
	r.Locals = nil
	for i, a := range s.Locals {
		if r.Forward != FullNAT {
			bad("Locals", s.Locals, "none, without FullNAT")
			break
		}
		if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			bad(fmt.Sprintf("Locals[%d]", i), a, "an address of a host")
		}
		r.Locals = append(r.Locals, a.Unmap())
	}
	if r.Forward == FullNAT && len(s.Locals) == 0 {
		bad("Locals", "none", "at least one address, with FullNAT")
	}
	if r.Forward == Tunnelled {
		errs = append(errs, r.Tunnel.resolve("Service "+strconv.Quote(s.Name)+".Tunnel")...)
		if r.MTU == 0 {
			r.MTU = 1500
		}
	} else if r.Tunnel != (Tunnel{}) {
		bad("Tunnel", r.Tunnel, "none, without Tunnelled")
	}
	if r.MTU != 0 && (r.MTU < 576 || r.MTU > 65535) {
		bad("MTU", r.MTU, "576 to 65535, or 0")
	}
	if t := r.Tunnel.wire(); r.Forward == Tunnelled && r.MTU-t.Overhead(true)-60 < 256 {
		bad("MTU", r.MTU, "one that leaves room in the tunnel")
	}
	if int(r.Mode) > int(clienttable.RemoveOnEndServerPerSession) {
		bad("Mode", uint8(r.Mode), "a mode of package clienttable")
	}
	for _, c := range []struct {
		name  string
		value *int
		most  int
	}{{"ClientBits4", &r.ClientBits4, 32}, {"ClientBits6", &r.ClientBits6, 128}} {
		switch {
		case *c.value == 0:
			*c.value = c.most
		case *c.value < 0:
			*c.value = 0
		case *c.value > c.most:
			bad(c.name, *c.value, fmt.Sprintf("1 to %d, 0 for all bits, or negative for none", c.most))
		}
	}
	if s.Delay != nil {
		d, err := s.Delay.resolve(&r)
		if err != nil {
			errs = append(errs, err)
		}
		r.Delay = &d
	}
	return r, errors.Join(errs...)
}
