package steering

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Advice is what the running system asks for a node beyond up and down: its agent, its health check's administrator, the slow start of a
// server. It narrows what is configured of the node and never widens it but for the weight. The zero Advice asks for nothing. It is a plain
// value.
type Advice struct {
	// Admin: the stricter of this and Node.Admin holds.
	Admin AdminState
	// Percent of the configured weight, 1 to 10,000; 0 stands for 100, [ZeroWeight] for none. The weight is at least 1 else.
	Percent int
	// MaxSessions: the lower of this and Node.MaxSessions holds. 0 is no limit.
	MaxSessions int
}

// MostPercent bounds Advice.Percent.
const MostPercent = 10_000

// Validate reports a field out of its range.
func (a Advice) Validate() error {
	switch {
	case !adminNames.Known(a.Admin):
		return &FieldError{"Advice.Admin", uint8(a.Admin), "one of " + adminNames.List()}
	case a.Percent < ZeroWeight || a.Percent > MostPercent:
		return &FieldError{"Advice.Percent", a.Percent, "1 to 10000, 0 for 100, or ZeroWeight"}
	case a.MaxSessions < 0:
		return &FieldError{"Advice.MaxSessions", a.MaxSessions, "0 (no limit) or more"}
	}
	return nil
}

// Advise replaces the advice for node id. It survives Set and Reconfigure as long as the node does. Unknown ids are ignored; advice that is
// not valid is refused and changes nothing.
func (p *Pool) Advise(id NodeID, a Advice) error {
	if err := a.Validate(); err != nil {
		return err
	}
	p.adviseAll(map[NodeID]Advice{id: a})
	return nil
}

// AdviseAll is Advise for many nodes at once, which takes hardly longer than for one. If any advice is not valid, nothing changes; the error joins all faults.
func (p *Pool) AdviseAll(advice map[NodeID]Advice) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(advice)) {
		if err := advice[id].Validate(); err != nil {
			errs = append(errs, fmt.Errorf("node %d: %w", id, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.adviseAll(advice)
	return nil
}

func (p *Pool) adviseAll(advice map[NodeID]Advice) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, changed := p.now(), false
	for id, a := range advice {
		if h := p.handle(id); h != nil && h.advice != a {
			h.advice = a
			p.enabled(h, now)
			changed = true
		}
	}
	if changed {
		p.publish(now)
	}
}

// enabled begins the slow start of a node that is enabled again, whatever came in between. p.mu is held.
func (p *Pool) enabled(h *handle, now time.Time) {
	switch h.admin() {
	case Disabled:
		h.off = true
	case Enabled:
		if h.off && h.up && p.warmUp(h) > 0 {
			h.warm = now
		}
		h.off = false
	}
}

// admin is the state in force.
func (h *handle) admin() AdminState {
	strictness := func(s AdminState) int {
		switch s {
		case SessionsShutdown:
			return 1
		case Draining:
			return 2
		case Disabled:
			return 3
		}
		return 0
	}
	if strictness(h.advice.Admin) > strictness(h.node.Admin) {
		return h.advice.Admin
	}
	return h.node.Admin
}

// weight is the weight in force.
func (h *handle) weight() int {
	if w := h.node.weight(); w > 0 && h.advice.Percent != ZeroWeight {
		return h.advice.scale(w, MaxWeight)
	}
	return 0
}

// scale returns the percentage of w, 1 to most.
func (a *Advice) scale(w, most int) int {
	if a.Percent <= 0 {
		return w
	}
	return int(min(max(int64(w)*int64(a.Percent)/100, 1), int64(most)))
}

// limit is the limit of sessions in force, 0 for none.
func (h *handle) limit() int64 {
	limit, advised := int64(h.node.MaxSessions), int64(h.advice.MaxSessions)
	if limit == 0 || advised != 0 && advised < limit {
		return advised
	}
	return limit
}
