package sslpersist

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// Availability is what the caller knows of a node. The zero Availability is Down.
type Availability uint8

const (
	Down    Availability = iota // takes no connections: its bindings move
	AtLimit                     // takes none now: its bindings stay
	Up                          // takes connections
)

var availabilityNames = enum.Of[Availability]("sslpersist: availability", "down", "at limit", "up")

// AppendText appends the name of a.
func (a Availability) AppendText(b []byte) ([]byte, error) { return availabilityNames.Append(b, a) }

// MarshalText is AppendText into a new slice.
func (a Availability) MarshalText() ([]byte, error) { return a.AppendText(nil) }

// String returns the name of a.
func (a Availability) String() string { return availabilityNames.String(a) }

// UnmarshalText reads what AppendText writes.
func (a *Availability) UnmarshalText(text []byte) error { return availabilityNames.Parse(a, text) }

// Basis says what a connection was placed by.
type Basis uint8

const (
	ByMetric  Basis = iota // nothing is known: the caller's metric places it
	BySession              // the session ID is bound
	ByTicket               // the key name of the ticket is bound
	ByAddr                 // the client's address is bound
)

var basisNames = enum.Of[Basis]("sslpersist: basis", "metric", "session ID", "ticket", "client address")

// AppendText appends the name of b.
func (b Basis) AppendText(buf []byte) ([]byte, error) { return basisNames.Append(buf, b) }

// MarshalText is AppendText into a new slice.
func (b Basis) MarshalText() ([]byte, error) { return b.AppendText(nil) }

// String returns the name of b.
func (b Basis) String() string { return basisNames.String(b) }

// UnmarshalText reads what AppendText writes.
func (b *Basis) UnmarshalText(text []byte) error { return basisNames.Parse(b, text) }

const maxUses = 6

// use is a binding that a connection keeps alive.
type use[N comparable] struct {
	e *engine[N]
	k key
}

// Conn is one connection through a [Farm]: open it, feed it what the client sends until
// there is a hello or an error, let it Choose, tell it by Bind who was chosen, then feed
// it both directions until it is Done, and Touch it on every packet.
//
// Make one by [Farm.Open]. It is safe for concurrent use, by one goroutine a direction for
// example, if what is read is fed before it is sent on. It must not be copied and needs no
// closing.
type Conn[N comparable] struct {
	farm   *Farm[N]
	client netip.Addr

	done  atomic.Bool
	again atomic.Int64 // when Touch has something to do again; nanoseconds of the farm's epoch

	mu      sync.Mutex
	hand    *hand  // what is read, or ended
	ended   ending // what it came to
	counted bool   // a failure was counted
	bound   bool
	node    N
	nuses   int
	uses    [maxUses]use[N]
}

// hand is what a connection needs while it is read: much more than afterwards. Its farm lends it.
type hand struct {
	Handshake
	pending  SessionID          // issued, the handshake is not yet ended
	stale    SessionID          // the ID shown that is bound to a node that is down
	staleKey [maxOffers]KeyName // likewise the key names offered
}

// ending is what is known of a handshake that was read.
type ending struct {
	resumed    bool
	cerr, serr error
}

// Open begins a connection of a client. Its address matters only with
// [Settings.ClientAddr].
func (f *Farm[N]) Open(client netip.Addr) *Conn[N] {
	c := &Conn[N]{farm: f, client: client, hand: f.hand()}
	c.again.Store(always)
	return c
}

// hand returns an empty one.
func (f *Farm[N]) hand() *hand {
	h, ok := f.hands.Get().(*hand)
	if !ok {
		h = new(hand)
	}
	h.client.pool, h.server.pool = &f.pool, &f.pool
	return h
}

// settle gives back what reading took, once nothing is left to be read.
func (c *Conn[N]) settle() {
	if h := c.hand; h.Done() {
		c.ended = ending{h.resumed, h.cerr, h.serr}
		c.hand = nil
		*h = hand{}
		c.farm.hands.Put(h)
	}
}

// Client takes the next bytes the client sent. It returns ErrShort while the hello is not
// complete, then hellos and errors as [Handshake.Client] does. With any other error the
// connection is to be placed by Choose all the same: nothing will be found but the
// client's address. Once the connection is bound and Done, there are no more hellos.
//
// The slices of a hello are valid until the next call of Client or Bind: one that came in
// pieces lies in memory lent by the farm.
func (c *Conn[N]) Client(chunk []byte) (ClientHello, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hand == nil {
		return ClientHello{}, c.ended.cerr
	}
	c.hand.client.giveBack()
	hello, err := c.hand.Client(chunk)
	if err != nil && !errors.Is(err, ErrShort) && !c.counted {
		c.counted = true
		switch {
		case errors.Is(err, ErrTooLarge):
			c.farm.stats.tooLarge.Add(1)
		case errors.Is(err, ErrMalformed):
			c.farm.stats.malformed.Add(1)
		default:
			c.farm.stats.notTLS.Add(1)
		}
	}
	c.done.Store(c.hand.Done())
	return hello, err
}

// Choice is where a connection should go. The zero Choice leaves it to the metric.
type Choice[N comparable] struct {
	Node N     // unless By is ByMetric
	By   Basis // what it was found by
}

// Choose says where the connection should go by what is known, asking available about the
// nodes that come into question, at most once for each binding found. It binds nothing.
// Available is called with the connection's lock held, so it must not use c.
func (c *Conn[N]) Choose(now time.Time, available func(N) Availability) Choice[N] {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.farm
	h := c.hand
	if h == nil {
		h = new(hand)
	}
	h.stale, h.staleKey = SessionID{}, [maxOffers]KeyName{}
	down := false
	follow := func(n N, by Basis, count *atomic.Uint64) (Choice[N], bool) {
		down = false
		switch available(n) {
		case Up:
		case AtLimit:
			if !f.set.OverLimit {
				f.stats.atLimit.Add(1)
				return Choice[N]{}, false
			}
		default:
			f.stats.down.Add(1)
			down = true
			return Choice[N]{}, false
		}
		count.Add(1)
		return Choice[N]{n, by}, true
	}
	if h.greeted && !f.off.Load() {
		if id := h.hello.SessionID; !id.IsZero() {
			if n, ok := f.ids.PeekAt(now, id); !ok {
				f.stats.unknown.Add(1)
			} else if choice, ok := follow(n, BySession, &f.stats.bySession); ok {
				return choice
			} else if down {
				h.stale = id
			}
		}
		for i := 0; f.keys != nil && i < int(h.noffers); i++ {
			name := f.keys.Name(h.offers[i])
			if n, ok := f.keys.PeekAt(now, name); ok {
				if choice, ok := follow(n, ByTicket, &f.stats.byTicket); ok {
					return choice
				} else if down {
					h.staleKey[i] = name
				}
			}
		}
	}
	if f.addrs != nil && c.client.IsValid() && !f.off.Load() {
		if n, ok := f.addrs.PeekAt(now, c.client); ok {
			if choice, ok := follow(n, ByAddr, &f.stats.byAddr); ok {
				return choice
			}
			if down {
				f.addrs.Delete(c.client)
			}
		}
	}
	f.stats.byMetric.Add(1)
	return Choice[N]{}
}

// Bind says that the connection goes to n. Bindings it showed that led to a node that is
// down now lead to n; those that led to n are used; others stay as they are.
func (c *Conn[N]) Bind(now time.Time, n N) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.farm
	c.bound, c.node = true, n
	h := c.hand
	if h != nil {
		defer c.settle() // there may be no hello
		h.client.giveBack()
	} else {
		h = new(hand)
	}
	if f.off.Load() {
		return
	}
	if id := h.hello.SessionID; h.greeted && !id.IsZero() {
		if h.stale == id && f.ids.LearnAt(now, id, n) == nil {
			f.stats.rebound.Add(1)
		}
		if f.ids.RefreshAt(now, id, n) {
			c.keep(f.ids.e, id.k)
		}
	}
	for i := 0; f.keys != nil && i < int(h.noffers); i++ {
		if name := f.keys.Name(h.offers[i]); f.keys.RefreshAt(now, name, n) {
			c.keep(f.keys.e, name.k)
		}
	}
	if f.addrs != nil && c.client.IsValid() {
		// A binding to a node at its limit stays: the client may be back when it is not.
		k := addrKey(c.client)
		if other, err := f.addrs.e.store(&k, n, f.addrs.e.nano(now), true, true); !other && err == nil {
			c.keep(f.addrs.e, k)
		}
	}
	c.again.Store(always)
}

// Server takes the next bytes the server sent, and learns what they teach. Its results are
// those of [Handshake.Server]; once the connection is Done, there are no more hellos.
func (c *Conn[N]) Server(now time.Time, chunk []byte) (ServerHello, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hand == nil {
		return ServerHello{}, c.ended.serr
	}
	reply, err := c.hand.Server(chunk)
	for {
		l, ok := c.hand.Next()
		if !ok {
			break
		}
		if c.bound && !c.farm.off.Load() {
			c.take(now, l)
		}
	}
	if err != nil && !errors.Is(err, ErrShort) && !c.counted {
		c.counted = true
		c.farm.stats.noReply.Add(1)
	}
	c.hand.server.giveBack()
	c.done.Store(c.hand.Done())
	c.settle()
	return reply, err
}

func (c *Conn[N]) take(now time.Time, l Lesson) {
	f := c.farm
	switch l.Kind {
	case LearnID:
		if f.set.WaitFinished && !c.hand.resumed {
			c.hand.pending = l.ID
			return
		}
		c.learnID(now, l.ID)
	case Finished:
		c.learnID(now, c.hand.pending)
		c.hand.pending = SessionID{}
	case RefreshID:
		if f.ids.RefreshAt(now, l.ID, c.node) {
			c.keep(f.ids.e, l.ID.k)
		}
	case LearnKey:
		if f.keys == nil {
			return
		}
		name := f.keys.Name(l.Ticket)
		if name.IsZero() {
			return
		}
		rebind := slices.Contains(c.hand.staleKey[:], name)
		// A full table is counted there; the connection goes on.
		if f.keys.LearnAt(now, l.Ticket, c.node, rebind) == nil {
			c.keep(f.keys.e, name.k)
		}
	}
}

func (c *Conn[N]) learnID(now time.Time, id SessionID) {
	// A full table is counted there; the connection goes on.
	if !id.IsZero() && c.farm.ids.LearnAt(now, id, c.node) == nil {
		c.keep(c.farm.ids.e, id.k)
	}
}

// keep makes Touch keep k alive. If the connection uses more than it can remember, the
// first is left to its idle time.
func (c *Conn[N]) keep(e *engine[N], k key) {
	for i := range c.nuses {
		if c.uses[i].e == e && c.uses[i].k == k {
			return
		}
	}
	if c.nuses == maxUses {
		copy(c.uses[:], c.uses[1:])
		c.nuses--
	}
	c.uses[c.nuses] = use[N]{e, k}
	c.nuses++
	c.again.Store(always)
}

// Touch says that there was a packet: the idle time of what the connection uses starts
// anew. It costs next to nothing but once a second, when it counts the whole second as
// used: an entry may live up to a second longer than its idle time, and never less. Of
// idle times under a minute it is a sixtieth.
func (c *Conn[N]) Touch(now time.Time) {
	at := c.farm.ids.e.nano(now)
	if at < c.again.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nuses == 0 {
		c.again.Store(never)
		return
	}
	step := int64(time.Second)
	for i := range c.nuses {
		if o := c.uses[i].e.owners.live(c.node); o != nil {
			step = min(step, o.ttl.Load()/60)
		}
	}
	for i := range c.nuses {
		u := &c.uses[i]
		u.e.refresh(&u.k, c.node, u.e.nano(now)+step)
	}
	c.again.Store(at + step)
}

// Done reports whether Client and Server need no more bytes. Touch still wants its
// packets.
func (c *Conn[N]) Done() bool { return c.done.Load() }

// Resumed reports whether the server resumed a session, as [Handshake.Resumed] does.
func (c *Conn[N]) Resumed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hand == nil {
		return c.ended.resumed
	}
	return c.hand.Resumed()
}
