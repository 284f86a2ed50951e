package healthcheck

import (
	"math/bits"
	"time"
)

// target is a check in a Monitor. All of it is guarded by the Monitor's lock.
type target struct {
	check Check
	seq   uint64 // place in the order of adding, scrambled; gives phase and jitter

	state     State
	damper    damper
	since     int64
	lastProbe int64
	upFrom    int64 // see Status.RampFrom
	concluded int64
	change    uint64
	last      Result
	latency   int64
	probes    uint64
	failures  uint64
	history   ring

	run    uint32  // goes up with every probe that is abandoned
	flight *flight // the running probe, if it was started and not called
	cancel func()  // of the running probe

	due     int64 // when to look at it next
	heapAt  int32 // index in the heap, or -1
	phase   phase
	slow    bool // the last probe took most of its time
	overrun bool // the running probe was given up on
	gone    bool // removed
	fired   bool // triggered, and no probe has started since
	settled bool // had a first result
}

// phase is where a target is in the cycle of its probes.
type phase uint8

const (
	parked  phase = iota // nothing planned
	waiting              // in the heap, for its next probe
	ready                // in a queue, for a worker
	probing              // a worker has it; in the heap for its deadline
)

// spread maps consecutive numbers evenly over [0, n): the fractional parts of
// multiples of the golden ratio, whose every run of consecutive numbers, and every
// arithmetic subsequence of them, is spread evenly too.
func spread(seq uint64, n int64) int64 {
	hi, _ := bits.Mul64(seq*0x9e3779b97f4a7c15, uint64(n))
	return int64(hi)
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// grid returns the first time at or after now at which the target is due by its
// place in the order: its probes stay on this grid for ever, so that what was
// spread evenly at the start stays so.
func (t *target) grid(now int64) int64 {
	iv := int64(t.check.Interval)
	ph := spread(t.seq, iv)
	k := (now - ph + iv - 1) / iv
	if now <= ph {
		k = 0
	}
	return ph + k*iv
}

// jitter returns an offset of up to plus or minus frac of d, different for every
// probe.
func (t *target) jitter(d time.Duration, permille int64) int64 {
	w := int64(d) / 1000 * permille
	if w == 0 {
		return 0
	}
	hi, _ := bits.Mul64(mix(t.seq+t.probes*0x9e3779b97f4a7c15), uint64(2*w))
	return int64(hi) - w
}

// hurried reports whether the state is about to change.
func (t *target) hurried() bool {
	switch {
	case t.damper.run < 0:
		return t.state != Failed
	case t.damper.run > 0:
		return !t.state.KeepsSessions() && int(t.damper.run) < t.check.Rise
	}
	return false
}

// plan sets due for the probe after one that started at from and ended at now. It
// returns false if there is none.
func (t *target) plan(now, from, permille int64) bool {
	c := &t.check
	// What has not answered at this target, or could not be asked, is asked again.
	if c.NoKeepalive && t.state == Active && t.damper.run > 0 && t.last.Verdict != Inconclusive {
		return false
	}
	if t.hurried() {
		t.due = max(now, from+int64(c.FastInterval)+t.jitter(c.FastInterval, permille))
		return true
	}
	t.due = max(now, t.grid(max(now, from+int64(c.Interval)/2))+t.jitter(c.Interval, permille))
	if hold := t.damper.holdUntil(c.limits(false)); hold > now && hold < t.due {
		t.due = hold
	}
	return true
}

// targetHeap is a heap of targets by due. It is written out, since this is what a
// Monitor does all day.
type targetHeap []heapItem

type heapItem struct {
	due int64
	t   *target
}

func (h *targetHeap) push(t *target) {
	t.heapAt = int32(len(*h))
	*h = append(*h, heapItem{t.due, t})
	h.up(len(*h) - 1)
}

func (h *targetHeap) remove(t *target) {
	i := int(t.heapAt)
	if i < 0 {
		return
	}
	t.heapAt = -1
	old := *h
	n := len(old) - 1
	last := old[n]
	old[n] = heapItem{}
	*h = old[:n]
	if i == n {
		return
	}
	(*h)[i] = last
	last.t.heapAt = int32(i)
	h.down(i)
	h.up(i)
}

// up and down move a hole instead of swapping, which halves what is written to
// targets all over the memory.
func (h targetHeap) up(i int) {
	it := h[i]
	for i > 0 {
		p := (i - 1) / 2
		if h[p].due <= it.due {
			break
		}
		h.set(i, h[p])
		i = p
	}
	h.set(i, it)
}

func (h targetHeap) down(i int) {
	it := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].due < h[c].due {
			c++
		}
		if it.due <= h[c].due {
			break
		}
		h.set(i, h[c])
		i = c
	}
	h.set(i, it)
}

func (h targetHeap) set(i int, it heapItem) {
	h[i] = it
	it.t.heapAt = int32(i)
}
