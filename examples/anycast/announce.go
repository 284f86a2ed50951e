package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lbprim/lbprim/steering"
)

// announcements keeps what routers are told right until ctx is done.
func (in *instance) announcements(ctx context.Context) error {
	const atLeast = time.Second // recovery times end and operators' states change without a transition
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in.poke:
		case <-t.C:
		}
		now := time.Now()
		wait := atLeast
		if next := in.announce(now); !next.IsZero() {
			wait = min(wait, max(0, next.Sub(now)))
		}
		t.Reset(wait)
	}
}

// announce decides about every virtual address and tells routers of what has changed. It returns when to ask again at the latest, if that is
// known.
func (in *instance) announce(now time.Time) (next time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	rules := in.conf.Damping.rules()
	for _, v := range in.conf.VIPs {
		p := v.Address.Prefix
		r := in.routes[p]
		if r == nil {
			r = &route{}
			in.routes[p] = r
		}
		enough, why := in.enough(v)
		due := r.step(rules, now, enough)
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
		switch {
		case in.ending || in.conf.Maintenance:
			why = "maintenance"
			if in.ending {
				why = "ending"
			}
			_ = in.tell(v, false, why) // it is tried again
		default:
			if r.suppressed {
				why += fmt.Sprintf("; withdrawn too often: penalty %.0f, reused below %.0f", r.decayed(rules, now), rules.reuse)
			}
			_ = in.tell(v, r.announced, why)
		}
	}
	return next
}

// enough reports whether there are usable nodes enough for v, and says what was counted.
func (in *instance) enough(v *vip) (ok bool, why string) {
	short := 0
	var counts []string
	for _, s := range v.Services {
		usable, all, want := in.usable(s.Farm), len(in.conf.Farms[s.Farm].Nodes), or(in.conf.Farms[s.Farm].MinNodes, 1)
		if usable < want {
			short++
		}
		counts = append(counts, fmt.Sprintf("%s has %d of %d nodes, wants %d", s.Name, usable, all, want))
	}
	if v.Withdraw == onAll {
		ok = short < len(v.Services)
	} else {
		ok = short == 0
	}
	return ok, strings.Join(counts, "; ")
}

// usable is how many nodes of a farm could take a session, but for limits that may be reached.
func (in *instance) usable(farm string) (n int) {
	for _, st := range in.pools.byFarm[farm].All() {
		switch st.State {
		case steering.Available, steering.AtLimit, steering.UnderSeverePressure:
			n++
		}
	}
	return n
}

// tell announces or withdraws v if routers were told otherwise. in.mu is held.
func (in *instance) tell(v *vip, announce bool, why string) error {
	p := v.Address.Prefix
	in.why[p] = why
	was, now := in.told[p], ""
	if announce {
		now = v.key()
	}
	if was == now {
		return nil
	}
	err := error(nil)
	if announce {
		err = in.speaker.announce(v)
	} else {
		err = in.speaker.withdraw(p)
	}
	if err != nil {
		in.log.Error("not told to routers", "vip", p, "err", err)
		return err
	}
	in.told[p] = now
	switch {
	case !announce:
		in.log.Warn("withdrawn", "vip", p, "why", why)
	case was == "":
		in.log.Info("announced", "vip", p, "why", why)
	default:
		in.log.Info("announced anew", "vip", p)
	}
	return nil
}

// key tells announcements of an address apart.
func (v *vip) key() string {
	return fmt.Sprintf("communities %x med %v prepend %d", v.Communities, or(v.MED, 0), v.Prepend)
}

// withdrawAll withdraws everything for good.
func (in *instance) withdrawAll() {
	in.mu.Lock()
	in.ending = true
	in.mu.Unlock()
	in.announce(time.Now())
}
