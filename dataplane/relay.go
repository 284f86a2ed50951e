package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// Relay has packets of flows that only another balancer can deal with sent to that one, in GRE with a key (RFC 2784, RFC 2890):
// those of a connection with delayed binding until it is spliced, and of one whose every request is judged. Thus each direction of such a
// connection may come by another balancer, too. All other flows are forwarded where they come, by what the [Peers] know of
// them. It needs Peers, and is plain data.
//
//	| outer IP | GRE: 0x2000, EtherType, key | packet as it came |
//
// There is room for the headers: what the balancers offer to clients and nodes of such connections as the largest segment is lowered
// accordingly; who sends larger packets all the same is told so by ICMP, once a second; and what is too large
// nevertheless goes in fragments of the outer packet, which the other balancer puts together.
type Relay struct {
	// Addr is where the other balancers reach this one. It is one of Config.Addrs, by default the first.
	Addr netip.Addr
	// From are the addresses of the balancers. Nothing is sent to others, and what others send is not taken. Routers at the border must not let
	// packets in that claim to come from them. Required. [Plane.SetRelayFrom] changes them.
	From []netip.Prefix
	// Key of GRE: one that all balancers have, and no channel of Intercept.Paths. Required.
	Key uint32
	// MTU of the way between the balancers. Default 1500.
	MTU int
}

func (x *Relay) resolve(c *Config) (*Relay, error) {
	r := *x
	var errs []error
	if c.Peers == nil {
		errs = append(errs, invalid("Config.Peers", nil, "the other balancers, with Relay"))
	}
	if !r.Addr.IsValid() && len(c.Addrs) > 0 {
		r.Addr = c.Addrs[0]
	}
	if r.Addr = r.Addr.Unmap(); !slices.Contains(c.Addrs, r.Addr) {
		errs = append(errs, invalid("Relay.Addr", x.Addr, "one of Config.Addrs"))
	}
	r.From = slices.Clone(x.From)
	errs = append(errs, balancers("Relay.From", r.From)...)
	if r.Key == 0 {
		errs = append(errs, invalid("Relay.Key", 0, "1 to 4294967295"))
	}
	if c.Intercept != nil && c.Intercept.Tunnel.Key == r.Key {
		errs = append(errs, invalid("Relay.Key", r.Key, "another key than Intercept.Tunnel has"))
	}
	if r.MTU == 0 {
		r.MTU = 1500
	}
	if r.MTU < 576 || r.MTU > 65535 {
		errs = append(errs, invalid("Relay.MTU", r.MTU, "576 to 65535, or 0 for 1500"))
	}
	return &r, errors.Join(errs...)
}

// balancers returns what is wrong with the addresses of balancers.
func balancers(field string, from []netip.Prefix) (errs []error) {
	for i, p := range from {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			errs = append(errs, invalid(fmt.Sprintf("%s[%d]", field, i), p, "a network or an address, such as 192.0.2.1/32"))
		}
	}
	if len(from) == 0 {
		errs = append(errs, invalid(field, "none", "the addresses of the balancers"))
	}
	return errs
}

// SetRelayFrom replaces the addresses of the balancers, see Relay.From, as balancers join and leave the cluster. The Plane needs a Config.Relay.
func (p *Plane) SetRelayFrom(from ...netip.Prefix) error {
	errs := balancers("From", from)
	if p.relay == nil {
		errs = append(errs, invalid("Config.Relay", nil, "a Relay, for balancers to be known"))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	from = slices.Clone(from)
	p.relay.from.Store(&from)
	return nil
}

// relaying is a Relay in force.
type relaying struct {
	conf  *Relay
	from  atomic.Pointer[[]netip.Prefix]
	way   *way
	parts reassembler
}

func newRelaying(c *Relay) *relaying {
	r := &relaying{conf: c, way: newWay(wayKey{Tunnelled, Tunnel{Kind: GRE, Key: c.Key}, c.MTU})}
	r.from.Store(&c.From)
	return r
}

func (r *relaying) knows(a netip.Addr) bool {
	return slices.ContainsFunc(*r.from.Load(), func(p netip.Prefix) bool { return p.Contains(a) })
}

// mss is the largest segment that fits through the relay, or 0 for any.
func (p *Plane) relayMSS(v6 bool) uint16 {
	if p.relay == nil {
		return 0
	}
	at := endOf(netip.AddrPortFrom(p.relay.conf.Addr, 0))
	return p.relay.way.limit(v6, &at)
}

// itself takes the place of a node's name where a balancer announces a flow that only it can deal with. Such an announcement ends with the
// balancer; see steering/cluster/flowshare.
const itself = "@"

// announceOwned tells the peers that packets of a flow are to be sent here.
func (p *Plane) announceOwned(svc *service, flows ...clienttable.Flow) {
	if p.relay == nil {
		return
	}
	text := note{service: svc.conf.Name, owner: p.relay.conf.Addr}.String()
	for _, k := range flows {
		p.cfg.Peers.Announce(k.Protocol(), k.Src(), k.Dst(), itself, text)
	}
}

// disown is withdraw for flows of announceOwned that have no session.
func (p *Plane) disown(k clienttable.Flow) {
	if p.relay != nil {
		p.withdraw(k)
	}
}

// owner returns the balancer that a flow's packets are to be sent to, if another one alone can deal with it.
func (p *Plane) owner(nodeName, text string) (a netip.Addr, owned bool) {
	if nodeName != itself {
		return a, false
	}
	n, err := parseNote(text)
	if err != nil || p.relay == nil || n.owner == p.relay.conf.Addr || !p.relay.knows(n.owner) {
		return a, true
	}
	return n.owner, true
}

// relayTo sends a packet to the balancer that can deal with it.
func (w *Worker) relayTo(pk *packet, to netip.Addr) {
	end := endOf(netip.AddrPortFrom(to, 0))
	if w.encapsulated(pk, w.p.relay.way, &end) {
		w.stats.relayed++
	}
}

// fromBalancer handles a packet that another balancer has relayed, as if it had come here. It returns false if pk is none.
func (w *Worker) fromBalancer(pk *packet) (done bool) {
	r := w.p.relay
	if w.asked || w.dry || addrOf(pk.v.Dst(pk.ip)) != r.conf.Addr || pk.v.Proto != wire.ProtoGRE || !r.knows(addrOf(pk.v.Src(pk.ip))) {
		return false
	}
	if pk.v.Mark&wire.Fragment != 0 && !w.reassemble(&r.parts, pk) {
		return true
	}
	at, key, ok := wire.OpenTunnel(pk.ip, &pk.v, 0)
	if !ok || key != r.conf.Key {
		if w.snap.inline != nil {
			return false // of a node's, perhaps
		}
		w.drop(pk, ForeignTunnel)
		return true
	}
	if reason := w.unwrap(pk, at); reason != NotDropped {
		w.drop(pk, reason)
		return true
	}
	w.stats.received++
	w.asked = true // the other balancer knows no better
	if s, ok := w.p.sessions().LoadAt(w.now, pk.key); ok && pk.v.Mark&(wire.ICMPError|wire.LaterFrag) == 0 {
		w.hit(pk, s)
	} else {
		w.miss(pk)
	}
	w.asked = false
	return true
}

// ownerNote is what a note of owner looks like behind the service.
const ownerNote = "\x00@"

func (n *note) parseOwner(service, text string) (err error) {
	n.service = service
	if n.owner, err = netip.ParseAddr(strings.TrimPrefix(text, "@")); err != nil {
		return err
	}
	if n.owner.Is4In6() || n.owner.Zone() != "" {
		return fmt.Errorf("balancer %v, want an address in its plain form", n.owner)
	}
	return nil
}
