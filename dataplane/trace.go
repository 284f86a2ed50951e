package dataplane

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// TraceConfig says which packets a [Trace] explains. A nil TraceConfig means all packets, within the defaults.
type TraceConfig struct {
	Filter
	// Rate is how many packets a second are explained at most. Default 100. Of packets beyond that nothing is told.
	Rate int
	// Queue is how many explanations may wait for Run; others are lost, and counted. Default 256.
	Queue int
}

// Trace explains packets of chosen flows while they are forwarded. Use [Plane.Trace]. Its methods are safe for concurrent use.
type Trace struct {
	p     *Plane
	cfg   TraceConfig
	rate  rate
	queue chan Traced
	lost  atomic.Uint64
}

// Traced is a packet that a [Trace] explains.
type Traced struct {
	Time time.Time // when the packet was handled
	Explanation
}

// Trace begins to explain packets. Explanations wait in a queue for [Trace.Run], which must be called.
func (p *Plane) Trace(cfg *TraceConfig) (*Trace, error) {
	t := &Trace{p: p}
	if cfg != nil {
		t.cfg = *cfg
		t.cfg.Filter = cfg.clone()
	}
	errs := t.cfg.validate("TraceConfig")
	if t.cfg.Rate == 0 {
		t.cfg.Rate = 100
	}
	if t.cfg.Rate < 0 || t.cfg.Rate > 1e6 {
		errs = append(errs, invalid("TraceConfig.Rate", t.cfg.Rate, "1 to 1,000,000, or 0 for 100"))
	}
	if t.cfg.Queue == 0 {
		t.cfg.Queue = 256
	}
	if t.cfg.Queue < 0 || t.cfg.Queue > 1<<20 {
		errs = append(errs, invalid("TraceConfig.Queue", t.cfg.Queue, "1 to 1,048,576, or 0 for 256"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	t.rate.limit = float64(t.cfg.Rate)
	t.rate.left = t.rate.limit
	t.queue = make(chan Traced, t.cfg.Queue)
	p.watch(func(on *watchers) { on.traces = append(on.traces, t) })
	return t, nil
}

// Stop ends the trace. Run returns after it has told what waits.
func (t *Trace) Stop() {
	t.p.watch(func(on *watchers) {
		on.traces = slices.DeleteFunc(on.traces, func(o *Trace) bool { return o == t })
	})
}

// Run calls tell with every explanation, one at a time, until ctx is done or [Trace.Stop] is called.
func (t *Trace) Run(ctx context.Context, tell func(Traced)) {
	defer t.Stop()
	tick := time.NewTicker(time.Second / 10)
	defer tick.Stop()
	for ctx.Err() == nil && t.active() {
		select {
		case <-ctx.Done():
		case <-tick.C:
		case e := <-t.queue:
			tell(e)
		}
	}
	t.Stop()
	t.p.quiesce()
	for {
		select {
		case e := <-t.queue:
			tell(e)
		default:
			return
		}
	}
}

func (t *Trace) active() bool {
	on := t.p.watchers.Load()
	return on != nil && slices.Contains(on.traces, t)
}

// Lost is how many explanations found no room in the queue.
func (t *Trace) Lost() uint64 { return t.lost.Load() }

func (t *Trace) add(now time.Time, e *Explanation) {
	select {
	case t.queue <- Traced{now, *e}:
	default:
		t.lost.Add(1)
	}
}
