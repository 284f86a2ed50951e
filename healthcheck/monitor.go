package healthcheck

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrRunning is returned by methods that must not be called while Run runs.
var ErrRunning = errors.New("healthcheck: monitor is running")

// ErrUnknownCheck is returned for an ID the Monitor does not have.
var ErrUnknownCheck = errors.New("healthcheck: unknown check")

// Config configures a [Monitor]. A nil Config, and every zero field, takes the
// default. It stays for the life of the Monitor: what is probed, and how, is in the
// checks, which [Monitor.Set] and its neighbours change while it runs.
type Config struct {
	// OnTransition, if not nil, is called for each change of state, one call at a
	// time and in order. It may call the Monitor's methods. While it blocks,
	// probes go on for a while, then wait.
	OnTransition func(Transition)
	// OnResult, if not nil, is called for each result, also an inconclusive one,
	// before the transition it causes, under the same rules.
	OnResult func(Check, Result, Status)
	// MaxConcurrent bounds the probes in flight; default 256, or a fiftieth of the
	// number of checks if that is more. Targets that took most of their timeout
	// last time get at most three quarters of it, so that they do not delay the
	// others.
	MaxConcurrent int
	// Jitter by which every interval varies, as a fraction of it, to either side;
	// 0 to 0.5, default 0.05. Negative: none.
	Jitter float64
	// History is how many of the last results are kept per check; up to 1000,
	// default 8. Negative: none.
	History int
	// Seed decides phases and jitter; 0, the default, takes a random one, so that
	// several machines do not probe in step.
	Seed uint64
	// Logger gets transitions (info) and inconclusive results (warning, when the
	// cause changes). Default: discards.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	var errs []error
	if c.MaxConcurrent < 0 || c.MaxConcurrent > 1<<20 {
		errs = append(errs, fmt.Errorf("healthcheck: Config.MaxConcurrent %d, want 1 to 1048576", c.MaxConcurrent))
	}
	if c.Jitter > 0.5 || c.Jitter != c.Jitter {
		errs = append(errs, fmt.Errorf("healthcheck: Config.Jitter %v, want up to 0.5", c.Jitter))
	}
	if c.History > 1000 {
		errs = append(errs, fmt.Errorf("healthcheck: Config.History %d, want up to 1000", c.History))
	}
	return errors.Join(errs...)
}

// Monitor probes checks on a schedule and keeps their states. Make one with
// [NewMonitor]. It must not be copied; its methods are safe for concurrent use.
// It has no goroutine but those inside Run, and those never for an idle target.
type Monitor struct {
	cfg      Config
	epoch    time.Time
	permille int64

	mu      sync.Mutex
	work    sync.Cond // workers wait here for targets
	room    sync.Cond // workers wait here for OnTransition to catch up
	targets map[string]*target
	seq     uint64
	heap    targetHeap
	calls   line // due, for a worker
	starts  line // due, to be started
	running bool
	wake    chan struct{} // tells the scheduler to look at the heap
	wakeAt  int64         // when it will anyhow

	workers, idle, slowBusy int
	launching               bool                 // somebody looks at starts, and will again
	helpers                 int                  // that launch beside Run
	unsettled               int                  // checks without a first result
	changes                 uint64               // of state, in all
	shortest                time.Duration        // of all intervals there have been
	held                    map[*target]struct{} // postponed until no check is unsettled

	watchedOnly bool // OnResult is for watched checks

	events     []event // to be delivered
	spare      []event // an empty slice for the next ones
	delivering bool
	stats      Stats
}

// limit returns how many probes may be in flight.
func (m *Monitor) limit() int {
	if m.cfg.MaxConcurrent > 0 {
		return m.cfg.MaxConcurrent
	}
	return max(256, len(m.targets)/50)
}

// NewMonitor returns a Monitor without checks.
func NewMonitor(cfg *Config) (*Monitor, error) {
	// A nanosecond ago, so that 0 can mean never.
	m := &Monitor{epoch: time.Now().Add(-1), targets: map[string]*target{}, held: map[*target]struct{}{}, wake: make(chan struct{}, 1)}
	if cfg != nil {
		m.cfg = *cfg
	}
	if err := m.cfg.validate(); err != nil {
		return nil, err
	}
	c := &m.cfg
	switch {
	case c.Jitter == 0:
		m.permille = 50
	case c.Jitter > 0:
		m.permille = int64(c.Jitter * 1000)
	}
	if c.History == 0 {
		c.History = 8
	}
	c.History = max(c.History, 0)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	m.seq, m.shortest = mix(c.Seed), MaxInterval
	m.work.L, m.room.L = &m.mu, &m.mu
	return m, nil
}

func (m *Monitor) now() int64 { return int64(time.Since(m.epoch)) }

// Set replaces the checks. Checks whose ID stays keep their state, history and
// place in the schedule; if the Target changed, the counts of results in a row
// start anew. Checks that are gone are forgotten without a transition, and a
// probe still running, of a check that is gone or of an old Target, is cancelled and
// does not count. If any check is wrong, Set
// changes nothing and reports all that is wrong, joined.
func (m *Monitor) Set(checks ...Check) error {
	if err := validateAll(checks); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	keep := make(map[string]bool, len(checks))
	for i := range checks {
		keep[checks[i].ID] = true
	}
	for id, t := range m.targets {
		if !keep[id] {
			m.forget(t)
		}
	}
	m.shortest = MaxInterval
	m.store(checks)
	return nil
}

// Store adds checks, or changes those with the same ID, as Set does, and leaves
// the others alone.
func (m *Monitor) Store(checks ...Check) error {
	if err := validateAll(checks); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(checks)
	return nil
}

// Delete removes checks, and returns how many of ids there were.
func (m *Monitor) Delete(ids ...string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if t := m.targets[id]; t != nil {
			m.forget(t)
			n++
		}
	}
	return n
}

func validateAll(checks []Check) error {
	var errs []error
	seen := make(map[string]int, len(checks))
	for i := range checks {
		c := &checks[i]
		if err := c.Validate(); err != nil {
			errs = append(errs, err)
		}
		if j, dup := seen[c.ID]; dup && c.ID != "" {
			errs = append(errs, fmt.Errorf("healthcheck: check %q: ID used by checks %d and %d, want it unique", c.ID, j, i))
		} else {
			seen[c.ID] = i
		}
	}
	return errors.Join(errs...)
}

func (m *Monitor) store(checks []Check) {
	now := m.now()
	for i := range checks {
		c := checks[i].withDefaults()
		m.shortest = min(m.shortest, c.FastInterval)
		t := m.targets[c.ID]
		if t == nil {
			m.changes++ // what is still to be told of an earlier check of this ID is older
			t = &target{check: c, seq: m.seq, heapAt: -1, change: m.changes}
			m.seq++
			m.unsettled++
			m.targets[c.ID] = t
			m.schedule(t, t.grid(now))
			continue
		}
		old := t.check
		t.check = c
		if old.Target != c.Target {
			t.damper.run = 0
			if t.phase == probing {
				t.abandon()
				m.schedule(t, now)
				continue
			}
		}
		// What changes the schedule takes effect now and not after an interval that
		// may have been a day.
		if !t.fired && (t.phase == waiting || t.phase == parked) {
			if old.Interval != c.Interval || old.FastInterval != c.FastInterval || old.NoKeepalive != c.NoKeepalive || old.Target != c.Target {
				m.replan(t, now, now-int64(c.Interval)/2)
			}
		}
	}
}

func (m *Monitor) forget(t *target) {
	delete(m.targets, t.check.ID)
	m.heap.remove(t)
	delete(m.held, t)
	t.gone = true
	t.abandon()
	m.settle(t)
}

// Trigger makes the check due now, or, if Run does not run, at its start.
func (m *Monitor) Trigger(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[id]
	if t == nil {
		return fmt.Errorf("%w %q", ErrUnknownCheck, id)
	}
	t.fired = true
	if t.phase == parked || t.phase == waiting {
		m.schedule(t, m.now())
	}
	return nil
}

// Report feeds a result that no probe of this Monitor made: from the data plane,
// say, or from an agent. A failure counts like that of a probe, and at once if it
// is Final. Anything else is only recorded: what is not the active check never
// revives a target.
func (m *Monitor) Report(id string, r Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[id]
	if t == nil {
		return fmt.Errorf("%w %q", ErrUnknownCheck, id)
	}
	now := m.now()
	m.record(t, now, r, r.Verdict == Fail)
	if r.Verdict == Fail && !t.fired {
		// The next probe may come earlier, but never later, however often something
		// is reported.
		switch due := t.due; t.phase {
		case parked:
			m.replan(t, now, now)
		case waiting:
			if t.plan(now, now, m.permille); t.due < due {
				m.schedule(t, t.due)
			} else {
				t.due = due
			}
		}
	}
	m.deliver(false)
	return nil
}

// Status returns the status of the check named id.
func (m *Monitor) Status(id string) (Status, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[id]
	if t == nil {
		return Status{}, false
	}
	return m.status(t), true
}

// Check returns the check named id with its defaults filled in.
func (m *Monitor) Check(id string) (Check, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[id]
	if t == nil {
		return Check{}, false
	}
	return t.check, true
}

// History returns the last results of the check named id, oldest first; nil if
// there is none.
func (m *Monitor) History(id string) []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.targets[id]
	if t == nil {
		return nil
	}
	return t.history.all(m.epoch)
}

// All returns the IDs and statuses of all checks, in no particular order. Each
// status is consistent in itself; checks stored or deleted meanwhile may be
// missed or seen. The loop body may call the Monitor's methods.
func (m *Monitor) All() iter.Seq2[string, Status] {
	return func(yield func(string, Status) bool) {
		m.mu.Lock()
		ids := make([]string, 0, len(m.targets))
		for id := range m.targets {
			ids = append(ids, id)
		}
		m.mu.Unlock()
		for _, id := range ids {
			if st, ok := m.Status(id); ok && !yield(id, st) {
				return
			}
		}
	}
}

// Len returns the number of checks.
func (m *Monitor) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.targets)
}

func (m *Monitor) time(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return m.epoch.Add(time.Duration(ns))
}

func (m *Monitor) status(t *target) Status {
	st := Status{
		State:     t.state,
		Since:     m.time(t.since),
		LastProbe: m.time(t.lastProbe),
		Verdict:   t.last.Verdict,
		Note:      t.last.Note,
		Err:       t.last.Err,
		Latency:   time.Duration(t.latency),
		HoldUntil: m.time(t.damper.holdUntil(t.check.limits(false))),
		RampFrom:  m.time(t.upFrom),
		NotAfter:  t.last.NotAfter,
		Agent:     t.last.Agent,
		Probes:    t.probes,
		Failures:  t.failures,
		change:    t.change,
		concluded: m.time(t.concluded),
	}
	if t.phase == waiting || t.phase == ready {
		st.NextProbe = m.time(t.due)
	}
	switch run := int(t.damper.run); {
	case run > 0:
		st.Streak, st.StreakVerdict = run, Pass
	case run < 0:
		st.Streak, st.StreakVerdict = -run, Fail
	}
	return st
}
