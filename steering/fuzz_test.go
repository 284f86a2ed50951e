package steering

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// FuzzPool plays arbitrary operations on pools of arbitrary configuration. Nothing
// panics, ids never come back, counts are those of a plain map, and nothing that must
// not be picked is.
func FuzzPool(f *testing.F) {
	f.Add([]byte{0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add([]byte{10, 0, 255, 254, 253, 200, 100, 50, 25, 12, 6, 3, 1, 0, 1, 3, 6, 12, 25, 50, 100, 200})
	f.Add([]byte{6, 7, 7, 7, 7, 7, 7, 7, 1, 1, 1, 1, 9, 9, 9, 9, 3, 3, 3, 3, 2, 2, 2, 2, 4, 5, 6, 7, 8})
	f.Fuzz(playPool)
}

func playPool(t *testing.T, data []byte) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	cfg := &Config{
		Metric: Metric(next() % 14), Seed: uint64(next()), TableSize: []int{0, 7, 251, 8}[next()%4],
		Buckets: []int{0, 2, 64, 1}[next()%4], Backup: BackupRule(next() % 2), NoPreempt: next()%2 == 0,
		PanicPercent: next() % 102, SlowStart: time.Duration(next()%2) * time.Second,
		RecoveryTime: time.Duration(next()%2) * time.Second, StickyOverLimit: next()%2 == 0,
	}
	config := func() (ns []Node) {
		for i := range next() % 6 {
			ns = append(ns, Node{
				Name: string(rune('a' + (i+next())%8)), Weight: next()%6 - 2, MaxSessions: next() % 4, Backup: next()%4 == 0,
				Admin: AdminState(next() % 5), Capacity: next() % 3 * 50,
			})
		}
		return ns
	}
	ns := config()
	p, err := NewPool(cfg, ns...)
	if err != nil {
		if !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		return
	}
	open := map[NodeID]int64{}
	gone := map[NodeID]bool{}
	now := time.Now()
	anyID := func() NodeID {
		ids := []NodeID{0, 77}
		for id := range p.All() {
			ids = append(ids, id)
		}
		return ids[next()%len(ids)]
	}
	for i := 0; len(data) > 0; i++ {
		switch next() % 12 {
		case 0:
			removed, err := p.Set(config()...)
			if err != nil && !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			for _, id := range removed {
				gone[id] = true
				delete(open, id)
			}
		case 1:
			p.SetUpAt(now, anyID(), next()%2 == 0)
		case 2:
			p.SetPressure(anyID(), Level(next()%4))
		case 3:
			now = now.Add(time.Duration(next()) * 10 * time.Millisecond)
			p.Step(now)
		case 4:
			if id := anyID(); p.Acquire(id) {
				open[id]++
			}
		case 5:
			id := anyID()
			p.Release(id)
			if open[id] > 0 {
				open[id]--
			}
		case 6:
			p.Observe(anyID(), time.Duration(next())*time.Millisecond)
		case 7:
			p.AddOctets(anyID(), uint64(next()))
			p.Tick()
		default:
			k := client(i * 7)
			k.Optimized = next()%2 == 0
			want := p.Explain(k)
			got, err := p.Pick(k)
			if got != want.Node || !errors.Is(err, want.Err) {
				t.Fatalf("picked %d, %v; explained %v", got, err, want)
			}
			if err != nil {
				continue
			}
			st, ok := p.Status(got)
			switch {
			case !ok || gone[got]:
				t.Fatalf("picked node %d, which is gone", got)
			case st.Node.Weight == ZeroWeight || st.Node.Admin != Enabled:
				t.Fatalf("picked %+v", st)
			case st.Node.MaxSessions > 0 && st.Sessions > int64(st.Node.MaxSessions) && !cfg.StickyOverLimit:
				t.Fatalf("over the limit: %+v", st)
			case st.Pressure == Severe && !k.Optimized:
				t.Fatalf("under severe pressure: %+v", st)
			case !st.Up && cfg.PanicPercent == 0:
				t.Fatalf("down: %+v", st)
			}
			open[got]++
		}
	}
	for id, st := range p.All() {
		if st.Sessions != open[id] {
			t.Fatalf("node %s has %d sessions, want %d", st.Node.Name, st.Sessions, open[id])
		}
		_ = fmt.Sprint(st)
	}
}
