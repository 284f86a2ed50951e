package steering

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A farmTwin says by the rules alone which nodes may get a session, and keeps nothing but whether the backups have taken over.
type farmTwin struct {
	cfg    *Config
	spares bool
}

// nodesOf returns what each node is to the rules.
func (w *farmTwin) look(p *Pool) (all []NodeStatus, willing []bool) {
	up, members := 0, 0
	for _, st := range p.All() {
		all = append(all, st)
		if !st.Node.Backup && st.Node.Admin == Enabled && st.Advice.Admin == Enabled {
			members++
			if st.Up {
				up++
			}
		}
	}
	panicking := members > 0 && up*100 < w.cfg.PanicPercent*members
	anyMember, anySpare := false, false
	for _, st := range all {
		ok := st.Node.Admin == Enabled && st.Advice.Admin == Enabled && st.Node.Weight != ZeroWeight && st.Advice.Percent != ZeroWeight
		ok = ok && (panicking || st.Up && st.State != Recovering)
		willing = append(willing, ok)
		anyMember = anyMember || ok && !st.Node.Backup
		anySpare = anySpare || ok && st.Node.Backup
	}
	w.spares = anySpare && (!anyMember || w.spares && w.cfg.NoPreempt)
	return all, willing
}

// may returns the names of the nodes of which one must be picked, or the error.
func (w *farmTwin) may(p *Pool, optimized bool) (names map[string]bool, err error) {
	all, willing := w.look(p)
	pressed := false
	for _, st := range all {
		pressed = pressed || st.Pressure != Normal
	}
	tiers := [][]Level{{Normal, High}} // of pass-through sessions; severe ones get none
	if optimized && pressed {
		tiers = [][]Level{{Normal}, {High}, {Severe}}
	}
	order := []bool{false, true} // members, backups
	switch {
	case w.spares:
		order = []bool{true, false}
	case w.cfg.Backup == BackupWhenDown:
		order = []bool{false}
	}
	some, severe := false, false
	for i, st := range all {
		severe = severe || willing[i] && st.Pressure == Severe
	}
	for _, backup := range order {
		for _, levels := range tiers {
			names := map[string]bool{}
			for i, st := range all {
				fits := false
				for _, l := range levels {
					fits = fits || st.Pressure == l
				}
				if !willing[i] || !fits || st.Node.Backup != backup {
					continue
				}
				some = true
				limit := st.Node.MaxSessions
				if a := st.Advice.MaxSessions; a > 0 && (limit == 0 || a < limit) {
					limit = a
				}
				if limit == 0 || st.Sessions < int64(limit) {
					names[st.Node.Name] = true
				}
			}
			if len(names) > 0 {
				return names, nil
			}
		}
	}
	switch {
	case some:
		return nil, ErrOverload
	case severe:
		return nil, ErrPressure
	}
	return nil, ErrNoNode
}

// Whatever limits, backups, pre-emption, panic, recovery times, slow starts, draining, pressure and advice come together: a
// node that may get the session gets it, no other does, and there is none only where the rules say so.
func TestFarmRulesAgainstTheSlowTwin(t *testing.T) {
	for _, m := range allMetrics() {
		t.Run(m.String(), func(t *testing.T) {
			for seed := range uint64(25) {
				r := rand.New(rand.NewPCG(seed, uint64(m)))
				cfg := &Config{
					Metric: m, TableSize: 251, Buckets: 64, Backup: BackupRule(r.IntN(2)), NoPreempt: r.IntN(2) == 0, ClientBits: 32,
					SlowStart: time.Duration(r.IntN(2)) * time.Second, RecoveryTime: time.Duration(r.IntN(2)) * time.Second,
				}
				if r.IntN(3) == 0 {
					cfg.PanicPercent = 1 + r.IntN(100)
				}
				config := func() (ns []Node) {
					for i := range 1 + r.IntN(6) {
						n := Node{Name: fmt.Sprint(i), MaxSessions: max(r.IntN(8)-4, 0), Backup: r.IntN(3) == 0, Weight: 1 + r.IntN(5)}
						if r.IntN(8) == 0 {
							n.Weight = ZeroWeight
						}
						if r.IntN(5) == 0 {
							n.Admin = AdminState(r.IntN(4))
						}
						ns = append(ns, n)
					}
					return ns
				}
				p := newPool(t, cfg, config()...)
				w := &farmTwin{cfg: cfg}
				w.look(p)
				now := time.Now()
				var held []NodeID
				for step := range 300 {
					ids := []NodeID{}
					for id := range p.All() {
						ids = append(ids, id)
					}
					some := ids[r.IntN(len(ids))]
					switch r.IntN(14) {
					case 0:
						if r.IntN(4) == 0 {
							_, err := p.Set(config()...)
							require.NoError(t, err)
						}
					case 1, 2:
						p.SetUpAt(now, some, r.IntN(2) == 0)
					case 3:
						p.SetPressure(some, Level(r.IntN(3)))
					case 4:
						now = now.Add(time.Duration(r.IntN(700)) * time.Millisecond)
						p.Step(now)
					case 5:
						a := Advice{MaxSessions: max(r.IntN(6)-3, 0)}
						if r.IntN(4) == 0 {
							a.Admin = AdminState(r.IntN(4))
						}
						if r.IntN(6) == 0 {
							a.Percent = ZeroWeight
						}
						require.NoError(t, p.Advise(some, a))
					case 6, 7:
						if len(held) > 0 {
							p.Release(held[0])
							held = held[1:]
						}
					case 8:
						if r.IntN(4) == 0 {
							p.Revert()
							w.spares = false
						}
					default:
						k := client(step * 31)
						k.Optimized = r.IntN(3) == 0
						may, want := w.may(p, k.Optimized)
						x := p.Explain(k)
						got, err := p.Pick(k)
						require.ErrorIs(t, err, want, "seed %d, step %d: may %v, explained %v", seed, step, may, x)
						if err != nil {
							continue
						}
						name, _ := p.Name(got)
						require.True(t, may[name], "seed %d, step %d: %q, may %v, explained %v", seed, step, name, may, x)
						held = append(held, got)
					}
					w.look(p) // the rules hold at every moment
				}
			}
		})
	}
}
