package dataplane

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/lbprim/lbprim/internal/enum"
	"github.com/lbprim/lbprim/policy"
)

// Config configures a [Plane]. A nil Config, and every zero field, takes the default. It is
// plain data; New keeps a copy.
//
// A field that names a method is changed by that one, while packets flow and without a session being disturbed. The others stay, and say why: most are
// of the caller's own making, and what is behind them can change without the Plane being told. Who needs another one all the same makes another Plane, which takes the
// sessions over by [Plane.WriteTo] and [Plane.Restore].
type Config struct {
	// Policies say which service a packet to a virtual address belongs to; [Plane.Apply] exchanges
	// them. Default: none, nothing is balanced.
	Policies *policy.Table[*Service]

	// Devices are the queues that Run reads and writes. What is read from a queue is written to the same one,
	// or to another one of the same interface. Run needs at least one; Process none. They stay, since a Plane is what is between them, and their number is
	// the kernel's matter, too; Workers is how many handle what comes by them.
	Devices []Device
	// Workers is how many workers the readers of the queues hand packets to, by the client's endpoint: both directions
	// of a session meet one worker, whatever queue they come by. Default 0: readers handle what they read, which
	// is cheaper, and best where there is one queue, or a device sees to it itself that a client's packets come by
	// one (as AF_PACKET's fanout does, and TUN for up to 4,096 flows). At most 256. [Plane.SetWorkers] changes it.
	Workers int
	// Accelerator, if there is one, is asked to forward packets of sessions in place of the Plane. Default: none. It stays, as
	// it has sessions; it may refuse all.
	Accelerator Accelerator
	// AccelerateAfter is how many packets of one direction a session must have had. Default 16. [Plane.SetAccelerateAfter] changes it.
	AccelerateAfter int
	// Link says what the packets given to [Plane.Process] look like. Devices tell that
	// of theirs themselves. It stays: it goes with the caller's buffers.
	Link Link
	// NextHop finds the interface and the addresses of the frame for a packet to dst.
	// Required where packets are Ethernet frames; it must be fast and is called by several workers
	// at once. It stays; what it finds may change at any time.
	NextHop func(dst netip.Addr) (Hop, bool)

	// Addrs are addresses of the balancer's own, one of each family: the outer source of tunnels and the
	// source of ICMP errors, which otherwise come from the virtual address. Tunnels need one of the
	// family of their nodes. [Plane.SetAddrs] changes them.
	Addrs []netip.Addr

	// MaxSessions bounds the sessions. A session needs some 350 bytes, taken as
	// they are used, but for the table of the flows, 144 bytes a session: Run takes that at once. Default 262,144; at most
	// 268,435,456. [Plane.SetMaxSessions] changes it.
	MaxSessions int
	// MaxAssociations bounds the clients that are remembered beyond their sessions. The
	// longest unused one makes room for a new one. Default 262,144; at most 268,435,456. [Plane.SetMaxAssociations] changes it.
	MaxAssociations int

	// AssociationChanges is how many of the last changes of the associations are kept for balancers that follow them, see [Plane.Replicas]: 80
	// bytes each, and a lock common to all workers when a client comes that is not known. Who is further behind is sent all of them. At most 2^28. Default none. It stays:
	// which Replicas there are is told to those who follow them at the start, and fewer than would be needed cost nothing but traffic.
	AssociationChanges int

	// Foreign is what happens to packets that are for no virtual address and belong
	// to no session. Default Pass. [Plane.SetForeign] changes it.
	Foreign Foreign
	// PingNodes is how many nodes, over all services of a virtual address, must be usable
	// for the Plane to answer an echo request to it that no policy matches. Default 1; negative: never
	// answer. [Plane.SetPingNodes] changes it.
	PingNodes int
	// CheckQuotes drops an ICMP error that quotes a packet whose IPv4 header checksum is wrong
	// (RFC 5508 requirement 3a). Off by default: routers are known to change what
	// they quote. [Plane.SetCheckQuotes] changes it.
	CheckQuotes bool

	// Peers are the other balancers of a cluster. They are told of sessions, and asked for the node of a
	// connection that has begun elsewhere. Default: there are none. They stay; who the others are is their own matter, and may change.
	Peers Peers
	// Relay has packets that only another balancer can deal with sent to that one. Default: they are refused. It stays, as
	// flows under way are known to the others by its Addr, clients were offered segments that fit its MTU, and its Key is one for all; but for Relay.From, which [Plane.SetRelayFrom] changes.
	Relay *Relay
	// Proxies are the addresses of proxies that rules send connections to, by a Service whose nodes they are. What comes from them to a
	// virtual address meets internal rules only (policy.Rule.Internal), and no other traffic does: so a connection can pass a proxy, and
	// then be balanced. To the service behind, the client is the proxy; if that runs on
	// this host, the service needs FullNAT, since answers to an address of the host would not pass the balancer. Default: none.
	// [Plane.SetProxies] changes them.
	Proxies []netip.Addr

	// MaxHeld bounds the connections with delayed binding that have a client and no node yet, or of whose later requests something is kept. One takes
	// some 500 bytes, and as many as Delay.Limits.Budget when it has sent something. Default 16,384. [Plane.SetMaxHeld] changes it.
	MaxHeld int
	// SYNAlarm is how many half-open handshakes with the balancer are logged as an attack. They cost nothing else.
	// Default 10,000. [Plane.SetSYNAlarm] changes it.
	SYNAlarm int
	// CookieSecret is what SYN cookies are made with, 16 bytes. Balancers that stand in for each other share one. Default: a
	// random one. [Plane.SetCookieSecrets] changes it.
	CookieSecret []byte

	// Intercept redirects flows that are for no virtual address. Default: they are passed on, or dropped. It
	// stays, as nodes have the other end of its tunnel; its Engine and Paths have methods that change rules, nodes and channels.
	Intercept *Intercept

	// Flows has the flows of sessions exported. Default: they are not. [Plane.SetFlowExport] changes
	// that.
	Flows *FlowExport

	// Seed of the hash of flows for consistent steering. Balancers that must agree share
	// one. It stays: by another one, the clients of consistent steering would find other nodes.
	Seed uint64
	// Logger gets what happens off the path of packets. Default: discarded. It stays; its handler may change what it does, as by a slog.LevelVar.
	Logger *slog.Logger
}

// Link says what precedes the IP header of a packet.
type Link struct {
	// Virtio: a virtio-net header ends where the packet begins, see [Offloader].
	Virtio bool
	// Ethernet: the packet begins with an Ethernet header, see [Framer].
	Ethernet bool
	// Ports: the interface index stands at offset-Headroom, see [Ported].
	Ports bool
}

// linkOf asks a device.
func linkOf(d Device) (l Link) {
	if o, ok := d.(Offloader); ok {
		l.Virtio = o.VirtioHeader() != 0
	}
	if f, ok := d.(Framer); ok {
		l.Ethernet = f.Ethernet()
	}
	if p, ok := d.(Ported); ok {
		l.Ports = p.Ports()
	}
	return l
}

// A Hop is the way of a packet to the next host.
type Hop struct {
	Port uint32  // index of the interface it leaves by
	Src  [6]byte // MAC of that interface
	Dst  [6]byte // MAC of the next host
	MTU  int     // of the interface; 0 is no limit
}

// Foreign is what happens to packets that are no business of the Plane's.
type Foreign uint8

const (
	// Pass sends them on untouched.
	Pass Foreign = iota
	// Drop drops them.
	Drop
)

var foreignNames = enum.Of[Foreign]("dataplane: foreign action", "pass", "drop")

// String returns the name of f.
func (f Foreign) String() string { return foreignNames.String(f) }

// AppendText implements encoding.TextAppender.
func (f Foreign) AppendText(b []byte) ([]byte, error) { return foreignNames.Append(b, f) }

// MarshalText implements encoding.TextMarshaler.
func (f Foreign) MarshalText() ([]byte, error) { return f.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Foreign) UnmarshalText(text []byte) error { return foreignNames.Parse(f, text) }

// Defaults of [Config].
const (
	DefaultMaxSessions     = 1 << 18
	DefaultMaxAssociations = 1 << 18
	DefaultMaxHeld         = 1 << 14
	DefaultSYNAlarm        = 10000

	mostEntries = 1 << 28
)

// ethernet reports whether any packets are frames.
func (c *Config) ethernet() bool {
	for _, d := range c.Devices {
		if linkOf(d).Ethernet {
			return true
		}
	}
	return c.Link.Ethernet
}

// withDefaults returns a copy of cfg with its zero fields filled in, or all its faults.
func (cfg *Config) withDefaults() (Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	var errs []error
	for _, n := range []struct {
		name     string
		value    *int
		fallback int
	}{{"MaxSessions", &c.MaxSessions, DefaultMaxSessions}, {"MaxAssociations", &c.MaxAssociations, DefaultMaxAssociations},
		{"AccelerateAfter", &c.AccelerateAfter, DefaultAccelerateAfter}, {"MaxHeld", &c.MaxHeld, DefaultMaxHeld}, {"SYNAlarm", &c.SYNAlarm, DefaultSYNAlarm}} {
		v, err := limit("Config."+n.name, *n.value, n.fallback)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		*n.value = v
	}
	if c.AssociationChanges < 0 || c.AssociationChanges > mostEntries {
		errs = append(errs, invalid("Config.AssociationChanges", c.AssociationChanges, fmt.Sprintf("0 to %d", mostEntries)))
	}
	proxies, bad := hosts("Config.Proxies", c.Proxies)
	c.Proxies, errs = proxies, append(errs, bad...)
	if n := len(c.CookieSecret); n != 0 && n != 16 {
		errs = append(errs, invalid("Config.CookieSecret", fmt.Sprintf("%d bytes", n), "16 bytes, or none"))
	}
	if c.Workers < 0 || c.Workers > maxWorkers {
		errs = append(errs, invalid("Config.Workers", c.Workers, fmt.Sprintf("0 to %d", maxWorkers)))
	}
	if int(c.Foreign) >= foreignNames.Len() {
		errs = append(errs, invalid("Config.Foreign", uint8(c.Foreign), "pass or drop"))
	}
	if c.PingNodes == 0 {
		c.PingNodes = 1
	}
	addrs, bad := ownAddrs("Config.Addrs", c.Addrs)
	c.Addrs, errs = addrs, append(errs, bad...)
	ether := c.Link.Ethernet
	for i, d := range c.Devices {
		if d == nil {
			errs = append(errs, invalid(fmt.Sprintf("Config.Devices[%d]", i), nil, "a device"))
			continue
		}
		if o, ok := d.(Offloader); ok && o.VirtioHeader() != 0 && o.VirtioHeader() != virtioLen {
			errs = append(errs, invalid(fmt.Sprintf("Config.Devices[%d].VirtioHeader()", i), o.VirtioHeader(), "0 or 10"))
		}
		ether = ether || linkOf(d).Ethernet
	}
	if ether && c.NextHop == nil {
		errs = append(errs, invalid("Config.NextHop", nil, "a function, since packets are Ethernet frames"))
	}
	if c.Intercept != nil {
		x, err := c.Intercept.resolve(&c)
		if err != nil {
			errs = append(errs, err)
		}
		c.Intercept = x
	}
	if c.Relay != nil {
		x, err := c.Relay.resolve(&c)
		if err != nil {
			errs = append(errs, err)
		}
		c.Relay = x
	}
	if c.Flows != nil {
		f, err := c.Flows.resolve()
		if err != nil {
			errs = append(errs, err)
		}
		c.Flows = f
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, errors.Join(errs...)
}
