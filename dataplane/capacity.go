package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// capacity has the tables whose size can change. A table of another size takes the place of one at once, and carries its entries over
// step by step, in Step; whoever still has the former one reaches the same entries.
type capacity struct {
	sessions atomic.Pointer[clienttable.Table[clienttable.Flow, ref]]
	assocs   atomic.Pointer[clienttable.Table[clienttable.Association, binding]]

	mu              sync.Mutex // for changes
	maxSessions     atomic.Int64
	maxAssociations atomic.Int64
}

func (p *Plane) sessions() *clienttable.Table[clienttable.Flow, ref] {
	return p.capacity.sessions.Load()
}

func (p *Plane) assocs() *clienttable.Table[clienttable.Association, binding] {
	return p.capacity.assocs.Load()
}

// records is how many records so many sessions need: a tenth of them may be in limbo at a time.
func records(sessions int) int { return sessions + sessions/8 + 64 }

// makeRoom makes the tables as Config wants them.
func (p *Plane) makeRoom() (err error) {
	c, at := &p.cfg, &p.capacity
	if p.slab, err = newSlab(records(c.MaxSessions), records(mostEntries)); err != nil {
		return fmt.Errorf("%w: Config.MaxSessions = %d: want fewer: %w", ErrInvalid, c.MaxSessions, err)
	}
	sessions, err := clienttable.New(&clienttable.Config[clienttable.Flow, ref]{
		MaxEntries: 2 * c.MaxSessions, OnRemove: p.removed, Owner: func(r ref) uint32 { return r.node },
	})
	if err != nil {
		return err
	}
	at.sessions.Store(sessions)
	assocs, err := clienttable.New(&clienttable.Config[clienttable.Association, binding]{
		MaxEntries: c.MaxAssociations, Full: clienttable.EvictOldest, Owner: func(b binding) uint32 { return b.node },
		ChangeLog: c.AssociationChanges,
	})
	if err != nil {
		return err
	}
	at.assocs.Store(assocs)
	at.maxSessions.Store(int64(c.MaxSessions))
	at.maxAssociations.Store(int64(c.MaxAssociations))
	return nil
}

// SetMaxSessions changes how many sessions there may be at a time, see Config.MaxSessions, while packets flow or before; 0 is the default. It
// either does so or, with an error, changes nothing.
//
// More: from its return on new sessions find room, those that were refused before, too. No session is moved to another node, reset or
// delayed; the entries of the table that finds them are carried over to a larger one by [Plane.Step], and there are both for so long.
//
// Fewer: no session ends for it. While there are more than n, a new one takes the place of a half-open or lingering one, as in any full
// table, or is refused. [Plane.Run] gives memory back as soon as those that are left fit into less.
//
// Where records of sessions cannot be given addresses later on, on systems other than Linux and macOS, in a process of 32 bits, or under a limit of
// the address space, the number can grow to a multiple of Config.MaxSessions at most, which the error tells.
func (p *Plane) SetMaxSessions(n int) error {
	return p.setCapacity("MaxSessions", n, DefaultMaxSessions, &p.capacity.maxSessions, func(now time.Time, n int) error {
		if most := len(p.slab.recs); records(n) > most {
			return invalid("MaxSessions", n, fmt.Sprintf("at most %d, for whose records address space was set aside when the Plane was made; for more, make a Plane with a larger Config.MaxSessions", (most-64)*8/9))
		}
		if err := p.slab.setLimit(records(n)); err != nil {
			return err
		}
		if err := resize(&p.capacity.sessions, now, 2*n); err != nil {
			return err
		}
		return resize(&p.lost.table, now, n)
	})
}

// MaxSessions returns what SetMaxSessions, or Config.MaxSessions, has set.
func (p *Plane) MaxSessions() int { return int(p.capacity.maxSessions.Load()) }

// SetMaxAssociations changes how many clients are remembered beyond their sessions, see Config.MaxAssociations, while packets flow or before; 0 is the
// default. It either does so or, with an error, changes nothing. None is forgotten for it: where there are more than n, two that were
// unused longest make room for each new one, until there are n. Planes that follow the associations notice nothing.
func (p *Plane) SetMaxAssociations(n int) error {
	return p.setCapacity("MaxAssociations", n, DefaultMaxAssociations, &p.capacity.maxAssociations, func(now time.Time, n int) error {
		return resize(&p.capacity.assocs, now, n)
	})
}

// MaxAssociations returns what SetMaxAssociations, or Config.MaxAssociations, has set.
func (p *Plane) MaxAssociations() int { return int(p.capacity.maxAssociations.Load()) }

func (p *Plane) setCapacity(field string, n, fallback int, is *atomic.Int64, set func(now time.Time, n int) error) error {
	n, err := limit(field, n, fallback)
	if err != nil {
		return err
	}
	p.capacity.mu.Lock()
	defer p.capacity.mu.Unlock()
	if p.closed.Load() {
		return fmt.Errorf("dataplane: %s = %d: %w", field, n, clienttable.ErrClosed)
	}
	now, was := time.Now(), is.Swap(int64(n))
	if err = set(now, n); err == nil {
		return nil
	}
	is.Store(was)
	_ = set(now, int(was)) // for which there was room
	if errors.Is(err, ErrInvalid) {
		return err
	}
	return fmt.Errorf("dataplane: %s = %d: %w", field, n, err)
}

// resize changes the bound of a table, if there is one.
func resize[K comparable, V any](at *atomic.Pointer[clienttable.Table[K, V]], now time.Time, n int) error {
	t := at.Load()
	if t == nil {
		return nil
	}
	change := t.Grow
	if n < t.MaxEntries() {
		change = t.Shrink
	}
	t, err := change(now, n)
	if err == nil {
		at.Store(t)
	}
	return err
}

// growing reports whether entries are yet to be carried over to a table of another size.
func (p *Plane) growing() bool {
	lost := p.lost.table.Load()
	return p.sessions().Growing() || p.assocs().Growing() || lost != nil && lost.Growing()
}

// reclaim gives the memory back that is not needed any more after a capacity was lowered.
func (p *Plane) reclaim(now time.Time) error {
	p.capacity.mu.Lock()
	defer p.capacity.mu.Unlock()
	if p.closed.Load() {
		return nil
	}
	p.slab.settle()
	if err := fit(&p.capacity.sessions, now); err != nil {
		return err
	}
	if err := fit(&p.capacity.assocs, now); err != nil {
		return err
	}
	return fit(&p.lost.table, now)
}

// fit is resize to the bound that a table has.
func fit[K comparable, V any](at *atomic.Pointer[clienttable.Table[K, V]], now time.Time) error {
	t := at.Load()
	if t == nil {
		return nil
	}
	t, err := t.Shrink(now, t.MaxEntries())
	if err == nil {
		at.Store(t)
	}
	return err
}

// reclaimAll calls reclaim now and then, beside maintain: to make a table takes a while. Of what goes wrong in the same way each time it tells once.
func (p *Plane) reclaimAll(ctx context.Context) {
	told := ""
	everySecond(ctx, func(now time.Time) { told = p.tellReclaim(p.reclaim(now), told) })
}

// tellReclaim logs what reclaim returned, unless that is what was told last, and returns it.
func (p *Plane) tellReclaim(err error, told string) string {
	if err == nil {
		if told != "" {
			p.cfg.Logger.Info("memory of tables is given back again")
		}
		return ""
	}
	if told != err.Error() {
		p.cfg.Logger.Warn("memory of tables is not given back", "err", err)
	}
	return err.Error()
}
