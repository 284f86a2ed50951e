package healthcheck

import (
	"time"
)

// Status is a snapshot of one check. It is a plain value.
type Status struct {
	State State // as of the last result
	// Since is when State was entered; the zero time if it never changed.
	Since time.Time
	// LastProbe is when the last probe started; the zero time before the first.
	LastProbe time.Time
	// NextProbe is when the next is due; the zero time if none is planned.
	NextProbe time.Time
	// Verdict, Note and Err are those of the last result.
	Verdict Verdict
	Note    string
	Err     error
	// Latency is that of the last pass.
	Latency time.Duration
	// Streak is how many conclusive results in a row agree with the last one, and
	// StreakVerdict is Pass or Fail accordingly.
	Streak        int
	StreakVerdict Verdict
	// HoldUntil is when the hold-down ends if no further probe fails; the zero
	// time if none is running.
	HoldUntil time.Time
	// RampFrom is when the target last came back: the start of its slow start. It
	// is the zero time for a target that never was down, since nothing starts
	// slowly at the start of the process.
	RampFrom time.Time
	// NotAfter is when the certificate last seen expires.
	NotAfter time.Time
	// Agent is what the agent last said, if the check is an agent check.
	Agent *AgentReport
	// Probes and Failures count all results since the check was added.
	Probes, Failures uint64

	change    uint64    // number of the last change of state in the Monitor
	concluded time.Time // start of the last probe with a conclusive result
}

// Transition reports that a check changed its state.
type Transition struct {
	Check    Check // that changed, as stored
	From, To State // the states before and after
	// Status is the one after the transition.
	Status Status
}

// Record is one result in the history of a check.
type Record struct {
	At      time.Time     // when the probe began
	Verdict Verdict       // what it came to
	Latency time.Duration // how long it took
	// Text is the error or the note of the result, of a very long one the beginning.
	Text string
}

// record is Record as it is kept.
type record struct {
	at      int64
	latency int64
	text    string
	verdict Verdict
}

// ring keeps the last results of a check.
type ring struct {
	recs []record
	next int
}

func (r *ring) add(rec record, limit int) {
	if limit == 0 {
		return
	}
	// Failures of one target mostly read alike; they share the text.
	if n := len(r.recs); n > 0 {
		if last := &r.recs[(r.next+n-1)%n]; last.text == rec.text {
			rec.text = last.text
		}
	}
	if len(r.recs) < limit {
		r.recs = append(r.recs, rec)
		return
	}
	r.recs[r.next] = rec
	r.next = (r.next + 1) % limit
}

func (r *ring) all(epoch time.Time) []Record {
	out := make([]Record, 0, len(r.recs))
	for i := range r.recs {
		rec := &r.recs[(r.next+i)%len(r.recs)]
		out = append(out, Record{epoch.Add(time.Duration(rec.at)), rec.verdict, time.Duration(rec.latency), rec.text})
	}
	return out
}
