package dataplane

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/enum"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
)

// Delay has the Plane answer a client's SYN itself and choose the node after it has read the beginning of the
// client's stream. Nothing is kept of a SYN, see splice.Cookies. Once the node has all that was read, the connection is translated, and
// costs what NAT does; from then on [Peers] know it, with its numbers, and can take it over. Before, or where every request is judged, other balancers
// send its packets to this one (see [Relay]), or reset it. Like the Service it is part of, a Delay is plain data and must not be changed once in use.
// The zero Delay reads nothing: it protects nodes from SYNs that no client stands behind.
type Delay struct {
	// Read says what the client's stream begins with. Default nothing: the node is chosen as soon as the client has proven
	// its address.
	Read Read
	// Limits bound what a connection may take before its node has answered.
	Limits splice.Limits
	// Offer is what clients are promised on behalf of the nodes; Offer.Window is Limits.Budget by default.
	Offer splice.Offer

	// Rules choose by what was read. A rule's farm is one of Farms; an action that answers needs ReadHTTP. Default: Service.Pool.
	//
	// In the mode First a connection stays with the node of its first request, and costs what NAT does. In the modes Overwrite and Maintain every
	// request of a kept connection is judged, its head as a whole and up to l7.MaxBudget long, and the connection moves to another node for it if its
	// farm is not the one it is with: Overwrite closes the connection to the former node, Maintain keeps it for a later request. Requests that are sent
	// ahead of a reply wait for that. Between two requests such a connection is part of a saved state (Plane.WriteTo), with those it has parked; within
	// one it is not, and is reset after a restart.
	Rules *l7.Policy
	// Farms are the pools that Rules name. All nodes of them must be of the family of Service.Pool's.
	Farms map[string]*steering.Pool

	// Sessions remembers which node has which TLS session, of this service or of several. It needs ReadTLS, and reads connections to
	// the ports that it watches. What a client shows goes before its association (Service.Mode), which then is not
	// consulted: Sessions has its own for client addresses. The Plane sweeps it.
	Sessions *sslpersist.Farm[steering.NodeID]
}

// Read says what the beginning of a client's stream is.
type Read uint8

const (
	// ReadNothing leaves it to the node.
	ReadNothing Read = iota
	// ReadTLS reads a ClientHello: server name, protocols, session and tickets. A stream that does not begin with one goes to the node by
	// the metric, or is dealt with by the default action of Rules.
	ReadTLS
	// ReadHTTP reads an HTTP/1.x request, by Delay.Rules.
	ReadHTTP
)

var readingNames = enum.Of[Read]("dataplane: reading", "nothing", "tls", "http")

// String returns the name of r.
func (r Read) String() string { return readingNames.String(r) }

// AppendText implements encoding.TextAppender.
func (r Read) AppendText(b []byte) ([]byte, error) { return readingNames.Append(b, r) }

// MarshalText implements encoding.TextMarshaler.
func (r Read) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Read) UnmarshalText(text []byte) error { return readingNames.Parse(r, text) }

// resolve returns d with its zero fields filled in, or all its faults, for a service that resolve has seen.
func (d *Delay) resolve(s *Service) (Delay, error) {
	r := *d
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, invalid(fmt.Sprintf("Service %q.Delay%s", s.Name, field), value, want))
	}
	if s.Forward != NAT && s.Forward != FullNAT {
		bad("", s.Forward, "none, unless answers pass the balancer: nat or fullnat")
	}
	if s.MidStream == Reselect {
		bad("", s.MidStream, "another mid-stream action: the numbers of an unknown connection cannot be translated")
	}
	if s.ServerLost == Reselect {
		bad("", s.ServerLost, "another action for a lost server: no other node knows the connection's numbers")
	}
	if int(r.Read) >= readingNames.Len() {
		bad(".Read", uint8(r.Read), "nothing, tls or http")
	}
	if r.Limits.Budget == 0 && r.Rules != nil {
		r.Limits.Budget = r.Rules.Config().Budget
	}
	limits, err := r.Limits.WithDefaults()
	if err != nil {
		errs = append(errs, fmt.Errorf("%w: Service %q.Delay.Limits: %w", ErrInvalid, s.Name, err))
	}
	r.Limits = limits
	if r.Offer.Window == 0 {
		r.Offer.Window = uint16(min(max(r.Limits.Budget, 0), 65535))
	}
	if r.Offer.MSS == 0 && s.MTU != 0 {
		r.Offer.MSS = uint16(s.MTU - 60)
	}
	if _, err := splice.NewCookies(nil, &r.Offer); err != nil {
		errs = append(errs, fmt.Errorf("%w: Service %q.Delay.Offer: %w", ErrInvalid, s.Name, err))
	}
	if r.Sessions != nil && r.Read != ReadTLS {
		bad(".Sessions", "set", "Read = tls, or none")
	}
	errs = append(errs, r.resolveRules(s, bad)...)
	return r, errors.Join(errs...)
}

// resolveRules looks at rules and farms.
func (d *Delay) resolveRules(s *Service, bad func(field string, value any, want string)) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(d.Farms)) {
		if d.Farms[name] == nil {
			bad(fmt.Sprintf(".Farms[%q]", name), nil, "a pool of nodes")
		}
	}
	switch {
	case d.Rules == nil && d.Read == ReadHTTP:
		bad(".Rules", nil, "rules, to read HTTP for")
	case d.Rules == nil && len(d.Farms) > 0:
		bad(".Farms", slices.Sorted(maps.Keys(d.Farms)), "none, without Rules")
	case d.Rules != nil && d.Read == ReadNothing:
		bad(".Read", d.Read, "tls or http, since there are rules")
	}
	if d.Rules == nil {
		return errs
	}
	if m := d.Rules.Config().Mode; m != l7.First && d.Read != ReadHTTP {
		bad(".Rules: Mode", m, "first, as only the first hello of a connection is in the clear")
	}
	check := func(where string, a l7.Action) {
		if _, ok := d.Farms[a.Farm]; a.Do == l7.Farm && !ok {
			bad(where, fmt.Sprintf("farm %q", a.Farm), "a farm of Farms")
		}
		if (a.Do == l7.Redirect || a.Do == l7.Reply) && d.Read != ReadHTTP {
			bad(where, a, "another action: a TLS client understands no answer in the clear")
		}
	}
	check(".Rules: default action", d.Rules.Config().Default)
	for _, rule := range d.Rules.Rules() {
		check(fmt.Sprintf(".Rules: row %d", rule.Index), rule.Action)
	}
	return errs
}

// all iterates over the pools of a service.
func (s *Service) all(yield func(*steering.Pool) bool) {
	if s.Pool != nil && !yield(s.Pool) || s.Delay == nil {
		return
	}
	for _, q := range s.Delay.Farms {
		if q != nil && !yield(q) {
			return
		}
	}
}

// delay is a Delay in force.
type delay struct {
	Delay
	cookies *splice.Cookies
	farms   map[string]*pool
}

// follows reports whether every request of a connection is judged.
func (d *delay) follows() bool { return d.Read == ReadHTTP && d.Rules.Config().Mode != l7.First }

// delayOf puts a Delay that resolve has seen in force. use returns the pool in force for one of the configuration.
func (p *Plane) delayOf(d *Delay, use func(*steering.Pool) *pool) *delay {
	f := &delay{Delay: *d, farms: make(map[string]*pool, len(d.Farms))}
	f.cookies, _ = splice.NewCookies(p.secret, &d.Offer) // resolve has seen to it that there is no error
	_ = f.cookies.SetSecrets(p.secrets...)               // that are what cookies take
	for name, q := range d.Farms {
		f.farms[name] = use(q)
	}
	return f
}

// cookieSecret returns the secret of SYN cookies.
func (c *Config) cookieSecret() []byte {
	if len(c.CookieSecret) == 16 {
		return slices.Clone(c.CookieSecret)
	}
	b := make([]byte, 16)
	rand.Read(b)
	return b
}

// sweepFarms has the tables of TLS sessions forget what is too old.
func (p *Plane) sweepFarms(now time.Time) {
	seen := make(map[*sslpersist.Farm[steering.NodeID]]bool)
	for svc := range p.snap.Load().named() {
		if svc.live && svc.delay != nil && svc.delay.Sessions != nil && !seen[svc.delay.Sessions] {
			seen[svc.delay.Sessions] = true
			svc.delay.Sessions.Sweep(now, 4096)
		}
	}
}

// explainDelayed says what would be done with a packet to a service with delayed binding.
func (w *Worker) explainDelayed(pk *packet, svc *service) {
	w.tr.e.Service = svc.conf.Name
	pk.verdict = Held
	if pk.v.TCPFlags&(wire.SYN|wire.ACK|wire.RST) == wire.SYN {
		if w.snap.draining {
			w.refuse(pk, svc, Draining)
			return
		}
		pk.verdict = Answered
		w.tr.step("delay", "service %q: the balancer answers the SYN, and chooses the node after it has read: %v", svc.conf.Name, svc.delay.Read)
		return
	}
	w.tr.step("delay", "service %q: the packet belongs to a handshake with the balancer, if it returns its cookie, else it is answered by a reset or dropped", svc.conf.Name)
}
