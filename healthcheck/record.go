package healthcheck

import (
	"errors"
	"log/slog"
	"unicode/utf8"
)

// event is something to tell the user.
type event struct {
	tr       Transition
	result   Result
	isResult bool // else a transition
}

// record takes in a result. Only those of the active check, and failures, count.
func (m *Monitor) record(t *target, now int64, r Result, counts bool) {
	if r.Verdict > Fail {
		r = Result{Err: errors.New("healthcheck: prober returned " + r.Verdict.String())}
	}
	if r.Verdict == Fail && r.Err == nil {
		r.Err = errors.New("healthcheck: prober gave no reason")
	}
	first := !t.settled
	m.settle(t)
	if r.Verdict == Inconclusive && (first || errText(t.last.Err) != errText(r.Err)) {
		m.cfg.Logger.Warn("check inconclusive", slog.String("check", t.check.ID), slog.Any("target", t.check.Target), slog.Any("err", r.Err))
	}
	t.probes++
	switch {
	case r.Verdict == Fail:
		t.failures++
	case r.Verdict.OK():
		t.latency = int64(r.Latency)
	}
	t.last = r
	if m.cfg.History > 0 {
		text := r.Note
		if r.Err != nil {
			text = r.Err.Error()
		}
		t.history.add(record{now, int64(r.Latency), keepText(text), r.Verdict}, m.cfg.History)
	}
	ev := NoEvent
	if counts {
		ev = t.damper.add(now, r.Verdict, r.Final, t.state, t.check.limits(false))
	}
	from, to := t.state, NextPort(t.state, ev)
	if from != to {
		m.changes++
		t.state, t.since, t.change = to, now, m.changes
		if to.Usable() && from == Failed {
			t.upFrom = now
		}
	}
	if m.cfg.OnResult != nil && (t.check.watched || !m.watchedOnly) {
		m.events = append(m.events, event{Transition{t.check, from, to, m.status(t)}, r, true})
	}
	if from == to {
		return
	}
	m.cfg.Logger.Info("check changed", slog.String("check", t.check.ID), slog.Any("target", t.check.Target),
		slog.Any("from", from), slog.Any("to", to), slog.Any("err", r.Err))
	if m.cfg.OnTransition != nil {
		m.events = append(m.events, event{Transition{t.check, from, to, m.status(t)}, r, false})
	}
}

// deliver calls the user for every event there is. One goroutine does so at a
// time; what others add meanwhile it delivers too. But one that is not to stay
// leaves that to Run, if it runs: it is the user's, and might never get away. The
// lock is held but for the calls themselves.
func (m *Monitor) deliver(stay bool) {
	if m.delivering {
		return
	}
	m.delivering = true
	defer func() { m.delivering = false }()
	for len(m.events) > 0 {
		batch := m.events
		m.events, m.spare = m.spare, nil
		m.room.Broadcast()
		if m.starts.len() > 0 {
			m.poke()
		}
		m.tell(batch)
		clear(batch)
		m.spare = batch[:0]
		if cap(batch) > maxEvents {
			m.spare = nil
		}
		if !stay && m.running && len(m.events) > 0 {
			m.poke()
			return
		}
	}
}

// tell calls the user. The lock is held again after it, also when that panics.
func (m *Monitor) tell(batch []event) {
	m.mu.Unlock()
	defer m.mu.Lock()
	for i := range batch {
		e := &batch[i]
		if e.isResult {
			m.cfg.OnResult(e.tr.Check, e.result, e.tr.Status)
		} else {
			m.cfg.OnTransition(e.tr)
		}
	}
}

// keepText cuts what a history keeps of a text, between two letters.
func keepText(s string) string {
	if len(s) <= maxKept {
		return s
	}
	n := maxKept
	for n > maxKept-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
