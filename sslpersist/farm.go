package sslpersist

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Farm is what one server farm knows: its settings, the table of session IDs, and if
// asked for that of ticket key names and of client addresses. Make one with [NewFarm]. It
// is safe for concurrent use and must not be copied.
type Farm[N comparable] struct {
	set   Settings[N]
	off   atomic.Bool
	ids   *Table[N]
	keys  *KeyTable[N]  // nil without Tickets
	addrs *AddrTable[N] // nil without ClientAddr
	pool  buffers
	hands sync.Pool // of *hand
	stats farmCounters
}

type farmCounters struct {
	bySession, byTicket, byAddr, byMetric atomic.Uint64
	unknown, atLimit, down, rebound       atomic.Uint64
	notTLS, malformed, tooLarge, noReply  atomic.Uint64
}

// NewFarm returns a farm that knows nothing yet, or every fault of set at once.
func NewFarm[N comparable](set *Settings[N]) (*Farm[N], error) {
	f := &Farm[N]{}
	if set != nil {
		f.set = *set
	}
	if err := f.set.validate(); err != nil {
		return nil, err
	}
	f.set.Ports = slices.Sorted(slices.Values(f.set.Ports)) // there may be many
	if len(f.set.Ports) == 0 {
		f.set.Ports = []uint16{DefaultPort}
	}
	if f.set.MaxEntries == 0 {
		f.set.MaxEntries = DefaultMaxEntries
	}
	f.off.Store(f.set.Off)
	var err error
	f.ids, err = NewTable(&Config[N]{MaxEntries: f.set.MaxEntries, TTL: f.set.TTL, TTLOf: f.set.TTLOf, Feed: f.set.Feed})
	if err != nil {
		return nil, err
	}
	if f.set.Tickets {
		f.keys, err = NewKeyTable(&KeyConfig[N]{
			Prefix: f.set.KeyPrefix, MaxEntries: f.set.MaxKeys, MaxOnce: f.set.MaxOnce,
			TTL: f.set.TTL, TTLOf: f.set.TTLOf, Feed: f.set.Feed,
		})
		if err != nil {
			return nil, err
		}
	}
	if f.set.ClientAddr {
		entries := f.set.MaxAddrs
		if entries == 0 {
			entries = f.set.MaxEntries
		}
		f.addrs = newAddrTable(&Config[N]{MaxEntries: entries, TTL: f.set.TTL, TTLOf: f.set.TTLOf, Feed: f.set.Feed})
	}
	return f, nil
}

// Watches reports whether connections to a destination port are to be read: it is one of
// the ports of the settings, and the farm is not off.
func (f *Farm[N]) Watches(port uint16) bool {
	_, found := slices.BinarySearch(f.set.Ports, port)
	return found && !f.off.Load()
}

// SetOff turns the farm off or on. What it knows is kept, and grows old, while it is off.
func (f *Farm[N]) SetOff(off bool) { f.off.Store(off) }

// IDs returns the table of session IDs.
func (f *Farm[N]) IDs() *Table[N] { return f.ids }

// Keys returns the table of ticket key names, nil without [Settings.Tickets].
func (f *Farm[N]) Keys() *KeyTable[N] { return f.keys }

// Addrs returns the table of client addresses, nil without [Settings.ClientAddr].
func (f *Farm[N]) Addrs() *AddrTable[N] { return f.addrs }

// Name returns Settings.Name.
func (f *Farm[N]) Name() string { return f.set.Name }

// Forget makes everything bound to n invisible at once and returns how many bindings that
// was. A node that is merely down need not be forgotten: its bindings move one by one, and
// are still there if it returns.
func (f *Farm[N]) Forget(n N) (bindings int) {
	bindings = f.ids.Forget(n)
	if f.keys != nil {
		bindings += f.keys.Forget(n)
	}
	if f.addrs != nil {
		bindings += f.addrs.e.forget(n)
	}
	return bindings
}

// SetTTL changes the idle time of everything bound to n, as [Table.SetTTL] does.
func (f *Farm[N]) SetTTL(n N, ttl time.Duration) (known bool, err error) {
	if known, err = f.ids.SetTTL(n, ttl); err != nil {
		return false, err
	}
	if f.keys != nil {
		known = f.keys.e.setTTL(n, ttl) || known
	}
	if f.addrs != nil {
		known = f.addrs.e.setTTL(n, ttl) || known
	}
	return known, nil
}

// Sweep frees up to limit dead entries of each table and returns how many they were.
func (f *Farm[N]) Sweep(now time.Time, limit int) (freed int) {
	freed = f.ids.Sweep(now, limit)
	if f.keys != nil {
		freed += f.keys.Sweep(now, limit)
	}
	if f.addrs != nil {
		freed += f.addrs.Sweep(now, limit)
	}
	return freed
}

// Run sweeps every second until ctx is done, and returns its error.
func (f *Farm[N]) Run(ctx context.Context) error {
	return runSweeps(ctx, func(now time.Time) { f.Sweep(now, sweepAtOnce) })
}

// FarmStats counts what happened to a farm since it was made. The zero FarmStats is that of
// a new one.
type FarmStats struct {
	BySession, ByTicket, ByAddr uint64 // connections placed by what they showed
	ByMetric                    uint64 // connections left to the metric

	Unknown uint64 // IDs shown that are not bound
	AtLimit uint64 // bindings not followed since the node was at its limit
	Down    uint64 // bindings not followed since the node was down
	Rebound uint64 // bindings moved for that

	NotTLS    uint64 // connections whose client sent no hello
	Malformed uint64 // or a broken one
	TooLarge  uint64 // or one of more than 64 KiB
	NoReply   uint64 // connections whose server sent no hello

	IDs, Keys, Addrs TableStats // of the three tables; zero of those that the farm does not have
}

// Stats returns the counters of f.
func (f *Farm[N]) Stats() FarmStats {
	s := FarmStats{
		BySession: f.stats.bySession.Load(), ByTicket: f.stats.byTicket.Load(), ByAddr: f.stats.byAddr.Load(),
		ByMetric: f.stats.byMetric.Load(),
		Unknown:  f.stats.unknown.Load(), AtLimit: f.stats.atLimit.Load(), Down: f.stats.down.Load(), Rebound: f.stats.rebound.Load(),
		NotTLS: f.stats.notTLS.Load(), Malformed: f.stats.malformed.Load(), TooLarge: f.stats.tooLarge.Load(), NoReply: f.stats.noReply.Load(),
		IDs: f.ids.Stats(),
	}
	if f.keys != nil {
		s.Keys = f.keys.Stats()
	}
	if f.addrs != nil {
		s.Addrs = f.addrs.Stats()
	}
	return s
}
