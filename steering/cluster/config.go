package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
)

// A Network opens sockets. It is safe for concurrent use. The zero value of a Config takes that of the host.
type Network interface {
	// Listen is that of net.ListenConfig; the network is "tcp".
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	// ListenPacket is that of net.ListenConfig; the network is "udp".
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
	// DialContext is that of net.Dialer; the network is "tcp".
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// A Peer is a member as it is configured.
type Peer struct {
	Name string // unique in the cluster
	// Pair names the failover pair the member belongs to: its members are on the same links.
	// Members without one are on links of their own.
	Pair string
}

// Config configures a [Cluster]. It is plain data; New keeps a copy.
//
// [Cluster.SetSettings] changes Settings and Advisory while it runs, and [Cluster.Follow] adds to Replicas. The rest is what the members know each other by, and stays for
// the life of a Cluster: it changes as one member after another makes another one. Keys tell how theirs do.
type Config struct {
	// Name of the cluster, 1 to 64 bytes. Required.
	Name string
	// Node is the name of this balancer, 1 to 128 bytes. Required.
	Node string
	// Bind is the address and port of gossip (UDP) and streams (TCP). An address of the host; port 0
	// takes a free one. Required.
	Bind netip.AddrPort
	// Join are addresses of members; some that answer are enough. Those where nobody is are tried again
	// and again, so that halves of a cluster find each other after a partition of any length.
	Join []netip.AddrPort

	// Keys are what members prove to know, 16 bytes at least, as random as can be. The first one is used, the others are
	// accepted, so that a key can be changed: add the new one everywhere, make it the first, take
	// the old one away. Required unless Insecure.
	Keys [][]byte
	// Insecure does without keys: whoever reaches Bind can join. It conflicts with Keys.
	Insecure bool

	// Topology and Members say who should be there, this balancer included. Members is
	// optional with Single.
	Topology Topology
	Members  []Peer
	// AllowFailure should be that of intercept.Config: whether new optimised connections are
	// redirected while a parallel peer is down. It is compared between members. It never concerns pass-through traffic.
	AllowFailure bool

	// Settings are what all members must have alike, by name. Advisory are those where a difference is worth no more
	// than a warning. See [InterceptSettings]. At most 1,000,000 bytes; less with hundreds of Members, whose names are
	// compared too.
	Settings, Advisory map[string]string

	// Flows configures the sharing of flows; Self, Transport and Rand are set by the Cluster.
	Flows flowshare.Config
	// Replicas are tables that members follow at each other, by a name that all know them by,
	// of at most 64 bytes. They are followed by the members of the same pair, or by all if there are no more
	// than 8 members. [Cluster.Follow] adds one.
	Replicas map[string]Replica
	// FollowEvery is how often changes of replicas are sent. Default 20 ms; 1 ms to 1 min.
	FollowEvery time.Duration
	// FollowRate bounds what is sent of replicas, in bytes a second, over all members, as Flows.MaxRate does for flows. At least
	// 10,000. Default: no bound.
	FollowRate int

	// OnState is told whenever the state changes, and once at the beginning. Who is slow is told the present state, not each
	// one in between.
	OnState func(intercept.ClusterState)
	// OnMembers is told the names of those who are up whenever that changes, likewise.
	OnMembers func(up []string)
	// OnMismatch is told of each difference once.
	OnMismatch func(Mismatch)
	// OnNode is told what another member reports of a node.
	OnNode func(member string, r NodeReport)

	// Network opens the sockets. Default: the host's.
	Network Network
	// Logger gets what is worth it. Default: discarded.
	Logger *slog.Logger
}

// Limits of names.
const (
	maxClusterName = 64
	maxNodeName    = 128
	maxFeedName    = 64
	minKey         = 16
)

// DefaultFollowEvery is the default of [Config.FollowEvery].
const DefaultFollowEvery = 20 * time.Millisecond

func (c *Config) withDefaults() (Config, error) {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, &steering.FieldError{Field: "cluster.Config." + field, Value: value, Want: want})
	}
	if c == nil {
		c = new(Config)
	}
	n := *c
	if n.Name == "" || len(n.Name) > maxClusterName {
		bad("Name", fmt.Sprintf("%q", n.Name), "1 to 64 bytes")
	}
	if n.Node == "" || len(n.Node) > maxNodeName {
		bad("Node", fmt.Sprintf("%q", n.Node), "1 to 128 bytes")
	}
	// Members tell each other addresses without a zone.
	local := func(a netip.AddrPort) bool {
		return a.Addr().Zone() != "" || a.Addr().Unmap().Is6() && a.Addr().IsLinkLocalUnicast()
	}
	if !n.Bind.IsValid() || n.Bind.Addr().IsUnspecified() || n.Bind.Addr().IsMulticast() || local(n.Bind) {
		bad("Bind", n.Bind, "an address of this host, which other members can reach, and not a link-local one of IPv6")
	}
	n.Join = nil
	for i, a := range c.Join {
		if !a.IsValid() || a.Port() == 0 || local(a) {
			bad(fmt.Sprintf("Join[%d]", i), a, "an address and port, and not a link-local one of IPv6")
		}
		n.Join = append(n.Join, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	n.Keys = nil
	for i, k := range c.Keys {
		if len(k) < minKey {
			bad(fmt.Sprintf("Keys[%d]", i), fmt.Sprintf("%d bytes", len(k)), "16 bytes at least")
		}
		n.Keys = append(n.Keys, slices.Clone(k))
	}
	switch {
	case n.Insecure && len(n.Keys) > 0:
		bad("Insecure", true, "false, as there are Keys")
	case !n.Insecure && len(n.Keys) == 0:
		bad("Keys", "none", "a key, or Insecure")
	}
	n.Members = slices.Clone(c.Members)
	if err := validTopology(n.Topology, n.Node, n.Members); err != nil {
		errs = append(errs, err)
	}
	if err := validSettings(&n); err != nil {
		errs = append(errs, err)
	}
	if n.Replicas = maps.Clone(c.Replicas); n.Replicas == nil {
		n.Replicas = map[string]Replica{}
	}
	for name, r := range n.Replicas {
		if name == "" || len(name) > maxFeedName || r == nil {
			bad(fmt.Sprintf("Replicas[%q]", name), r, "a replica with a name of 1 to 64 bytes")
		}
	}
	switch {
	case n.FollowEvery == 0:
		n.FollowEvery = DefaultFollowEvery
	case n.FollowEvery < time.Millisecond || n.FollowEvery > time.Minute:
		bad("FollowEvery", n.FollowEvery, "1ms to 1m, or 0 for 20ms")
	}
	if n.FollowRate != 0 && (n.FollowRate < 10_000 || n.FollowRate > 1<<30) {
		bad("FollowRate", n.FollowRate, "10000 to 1073741824, or 0 for no bound")
	}
	if n.Flows.Self != (flowshare.Member{}) || n.Flows.Transport != nil {
		bad("Flows", "Self or Transport set", "both unset: they are the Cluster's")
	}
	if n.Network == nil {
		n.Network = hostNetwork{}
	}
	if n.Logger == nil {
		n.Logger = slog.New(slog.DiscardHandler)
	}
	return n, errors.Join(errs...)
}

type hostNetwork struct{}

func (hostNetwork) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, network, address)
}

func (hostNetwork) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(ctx, network, address)
}

func (hostNetwork) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, address)
}
