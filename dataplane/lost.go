package dataplane

import (
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
)

// lost remembers the TCP connections whose nodes were lost, by the flow as clients know it, so that they can be told from those that were never
// known. A node's sessions are invalid at once and without a search; their entries say so until a sweep removes them, and then
// this table does, for as long as the session would have lived. It is made when a service needs it, and holds the number of the service.
type lost struct {
	some  atomic.Bool
	table atomic.Pointer[clienttable.Table[clienttable.Flow, uint32]]
}

// need makes the table, for sessions of a service that treats a lost node otherwise than an unknown connection. p.mu is held.
func (l *lost) need(p *Plane, c *Service) error {
	if c.ServerLost == c.MidStream || l.table.Load() != nil {
		return nil
	}
	t, err := clienttable.New(&clienttable.Config[clienttable.Flow, uint32]{
		MaxEntries: p.MaxSessions(), Full: clienttable.EvictOldest, Layout: clienttable.Packed,
	})
	if err == nil {
		l.table.Store(t)
	}
	return err
}

// add notes a session that leaves the session table because its node was lost.
func (l *lost) add(p *Plane, k clienttable.Flow, rec *record) {
	t := l.table.Load()
	if t == nil || rec.flags&isTCP == 0 {
		return
	}
	svc := p.snap.Load().service(rec.service)
	if svc == nil || svc.conf.ServerLost == svc.conf.MidStream {
		return
	}
	rec.lock.acquire()
	state := rec.tcp
	rec.lock.release()
	if state.Ended() || state.HalfOpen() {
		return
	}
	life := svc.timers.TCP(state, rec.vip.Port, svc.conf.Mode)
	life.Class = clienttable.Established
	if t.StoreLife(time.Now(), k, rec.service, life) == nil {
		l.some.Store(true)
	}
}

// begun forgets a flow that begins anew.
func (l *lost) begun(now time.Time, k clienttable.Flow) {
	if l.some.Load() {
		l.table.Load().DeleteAt(now, k)
	}
}

// step forgets what is too old.
func (l *lost) step(now time.Time, limit int) (n int) {
	t := l.table.Load()
	if t == nil || !l.some.Load() && !t.Growing() {
		return 0
	}
	n = t.Sweep(now, limit)
	if t.LenAt(now) == 0 {
		l.some.Store(false)
		if t.LenAt(now) > 0 { // added a moment ago
			l.some.Store(true)
		}
	}
	return n
}

func (l *lost) free() {
	if t := l.table.Load(); t != nil {
		t.Close()
	}
}

// unknown says what is to be done with a TCP packet of no session to a service that begins none, and whether its session's node was lost.
func (w *Worker) unknown(pk *packet, svc *service) (do MidStream, lost bool) {
	no := uint32(0)
	if r, ok := w.p.sessions().Invalidated(w.now, pk.key); ok && r.dir() == toNode {
		no, lost = w.recs[r.record()].service, true
	} else if w.p.lost.some.Load() {
		no, lost = w.p.lost.table.Load().PeekAt(w.now, pk.key)
	}
	if !lost {
		return svc.conf.MidStream, false
	}
	if q := w.p.cfg.Peers; q != nil && !w.asked {
		if _, _, ok := q.Lookup(pk.key.Protocol(), pk.key.Src(), pk.key.Dst()); ok {
			return svc.conf.MidStream, false // another connection of these ends, which has begun elsewhere
		}
	}
	if s := w.snap.service(no); s != nil {
		svc = s // that it was of
	}
	return svc.conf.ServerLost, true
}
