package sslpersist

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// The defaults of [KeyConfig].
const (
	DefaultPrefix  = 16
	DefaultMaxKeys = 1 << 16
	DefaultMaxOnce = 4096
)

// minPrefix is the shortest key name that tells servers apart.
const minPrefix = 4

// KeyConfig configures a [KeyTable]. A nil KeyConfig, and every zero field, takes the
// default.
type KeyConfig[N comparable] struct {
	// Prefix is the length of a key name in bytes, 4 to 32; default 16, as OpenSSL, nginx
	// and BoringSSL have it.
	Prefix int
	// MaxEntries bounds the key names; default 65,536, at most 1<<26.
	MaxEntries int
	// MaxOnce bounds the prefixes that were seen once and may or may not be key names;
	// default 4096. Beyond it the one not seen for longest is given up.
	MaxOnce int
	// TTL, TTLOf and Feed are those of Config.
	TTL   time.Duration
	TTLOf func(n N) time.Duration
	Feed  int
}

func (c *KeyConfig[N]) validate() error {
	base := Config[N]{MaxEntries: c.MaxEntries, TTL: c.TTL, Feed: c.Feed}
	errs := []error{base.validate()}
	if c.Prefix != 0 && (c.Prefix < minPrefix || c.Prefix > maxKey) {
		errs = append(errs, fmt.Errorf("sslpersist: Prefix is %d bytes: want %d to %d, or 0 for %d", c.Prefix, minPrefix, maxKey, DefaultPrefix))
	}
	if c.MaxOnce < 0 {
		errs = append(errs, fmt.Errorf("sslpersist: MaxOnce is %d: want 1 or more, or 0 for %d", c.MaxOnce, DefaultMaxOnce))
	}
	return errors.Join(errs...)
}

// KeyTable remembers which node's tickets begin with which key name. Servers that encrypt
// tickets need to know which of their keys did it, and most write its name, 16 bytes, in
// front. A client that offers such a ticket can only be resumed by a server that has the
// key.
//
// Not all tickets begin with a name, so a prefix is taken for one only after two different
// tickets of one node began with it. Until then it waits in a small set from which the
// oldest is given up: tickets without a name, each with a prefix of its own, pass through
// it and leave nothing behind.
//
// Two nodes may share a key. Then both are good for it, the first binding stays, and the
// other's claims are counted as Shared.
//
// Make one with [NewKeyTable]. It is safe for concurrent use and must not be copied. Idle
// times, limits and forgetting are those of [Table].
type KeyTable[N comparable] struct {
	e      *engine[N]
	prefix int

	mu   sync.Mutex
	once *simplelru.LRU[claim[N], uint64] // the fingerprint of the one ticket
}

// claim is a prefix seen on a ticket of a node.
type claim[N comparable] struct {
	name KeyName
	node N
}

// NewKeyTable returns an empty table, or every fault of cfg at once.
func NewKeyTable[N comparable](cfg *KeyConfig[N]) (*KeyTable[N], error) {
	var c KeyConfig[N]
	if cfg != nil {
		c = *cfg
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Prefix == 0 {
		c.Prefix = DefaultPrefix
	}
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMaxKeys
	}
	if c.MaxOnce == 0 {
		c.MaxOnce = DefaultMaxOnce
	}
	// The order wanted here is that of last use and the oldest may go: what this LRU does.
	once, err := simplelru.NewLRU[claim[N], uint64](c.MaxOnce, nil)
	if err != nil {
		return nil, fmt.Errorf("sslpersist: MaxOnce is %d: %w", c.MaxOnce, err)
	}
	t := &KeyTable[N]{e: newEngine(c.MaxEntries, ttlFunc(c.TTL, c.TTLOf), c.Feed), prefix: c.Prefix, once: once}
	t.e.want = uint64(c.Prefix)
	return t, nil
}

// Name returns the prefix of a ticket that is taken for a key name, or the zero KeyName if
// the ticket is too short to have one.
func (t *KeyTable[N]) Name(m TicketMark) KeyName { return m.KeyName(t.prefix) }

// LookupAt returns the node whose tickets begin with name, and counts as a use of it.
func (t *KeyTable[N]) LookupAt(now time.Time, name KeyName) (n N, ok bool) {
	if name.IsZero() {
		return n, false
	}
	return t.e.lookup(&name.k, t.e.nano(now), true)
}

// PeekAt is LookupAt but does not count as a use.
func (t *KeyTable[N]) PeekAt(now time.Time, name KeyName) (n N, ok bool) {
	if name.IsZero() {
		return n, false
	}
	return t.e.lookup(&name.k, t.e.nano(now), false)
}

// LearnAt takes note that n issued or accepted a ticket. It binds the key name on the
// second of two different tickets of n. A name bound to another node stays there,
// unless rebind says that this node is no longer good. It returns ErrFull if there is
// no room, which is counted.
func (t *KeyTable[N]) LearnAt(now time.Time, m TicketMark, n N, rebind bool) error {
	name := t.Name(m)
	if name.IsZero() {
		return nil
	}
	at := t.e.nano(now)
	if t.e.refresh(&name.k, n, at) || !t.confirmed(claim[N]{name, n}, m.print) {
		return nil
	}
	shared, err := t.e.store(&name.k, n, at, !rebind, true)
	if shared && !rebind {
		t.e.stats.shared.Add(1)
	}
	return err
}

// confirmed reports whether c was seen on another ticket before, else it remembers this one.
func (t *KeyTable[N]) confirmed(c claim[N], print uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch before, ok := t.once.Get(c); {
	case !ok:
		t.once.Add(c, print)
		return false
	case before == print:
		return false // the same ticket again proves nothing
	}
	t.once.Remove(c)
	return true
}

// RefreshAt counts as a use of name if it is bound to n, and reports whether it is.
func (t *KeyTable[N]) RefreshAt(now time.Time, name KeyName, n N) bool {
	return !name.IsZero() && t.e.refresh(&name.k, n, t.e.nano(now))
}

// Forget makes every key name bound to n invisible at once, and returns their number.
func (t *KeyTable[N]) Forget(n N) (names int) {
	t.giveUp(n)
	return t.e.forget(n)
}

// giveUp drops the prefixes seen once on tickets of n.
func (t *KeyTable[N]) giveUp(n N) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.once.Keys() {
		if c.node == n {
			t.once.Remove(c)
		}
	}
}

// SetTTL changes the idle time of the key names bound to n, as [Table.SetTTL] does.
func (t *KeyTable[N]) SetTTL(n N, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		return false, fmt.Errorf("sslpersist: TTL is %v: want more than 0", ttl)
	}
	return t.e.setTTL(n, ttl), nil
}

// Len returns the number of key names, expired ones not yet freed included.
func (t *KeyTable[N]) Len() int { return t.e.owners.len() }

// Waiting returns the number of prefixes seen once.
func (t *KeyTable[N]) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.once.Len()
}

// All returns the live bindings, in no order, as [Table.All] does.
func (t *KeyTable[N]) All() iter.Seq2[KeyName, N] {
	return func(yield func(KeyName, N) bool) {
		for b := range t.e.all(t.e.nano(time.Now())) {
			if !yield(KeyName{b.k}, b.node) {
				return
			}
		}
	}
}

// Sweep frees up to limit dead entries and returns how many they were.
func (t *KeyTable[N]) Sweep(now time.Time, limit int) (freed int) {
	return t.e.sweep(t.e.nano(now), limit)
}

// Run sweeps every second until ctx is done, and returns its error.
func (t *KeyTable[N]) Run(ctx context.Context) error {
	return runSweeps(ctx, func(now time.Time) { t.Sweep(now, sweepAtOnce) })
}

// Stats returns the counters of t.
func (t *KeyTable[N]) Stats() TableStats { return t.e.statistics() }
