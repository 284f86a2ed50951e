package main

import (
	"math"
	"time"
)

// perWithdrawal is the penalty for a withdrawal, as usual with RFC 2439.
const perWithdrawal = 1000

// dampingRules are the numbers of damping.
type dampingRules struct {
	announceAfter, withdrawAfter time.Duration
	halfLife, longest            time.Duration
	suppress, reuse              float64
}

// ceiling is the highest penalty there is, so that none keeps a route suppressed for longer than longest (RFC 2439 section 4.2).
func (r dampingRules) ceiling() float64 {
	return r.reuse * math.Exp2(float64(r.longest)/float64(r.halfLife))
}

// halfLives is how long a penalty takes to fall to reuse.
func (r dampingRules) halfLives(penalty float64) time.Duration {
	return time.Duration(math.Ceil(math.Log2(penalty/r.reuse) * float64(r.halfLife)))
}

// route decides from whether a virtual address has nodes enough whether it is to be announced. The zero route is withdrawn and has no
// penalty.
//
// It is withdrawn after withdrawAfter of too few nodes, and announced after announceAfter of enough. Each withdrawal adds to its
// penalty, which halves in every halfLife; from suppress on, the route stays withdrawn until the penalty is below reuse: a server that
// dies every minute must not move the traffic of a whole site every minute.
type route struct {
	announced  bool
	suppressed bool
	enough     bool
	since      time.Time // when enough last changed
	penalty    float64
	at         time.Time // when penalty was right
}

// decayed is the penalty at a time.
func (r *route) decayed(rules dampingRules, now time.Time) float64 {
	if r.penalty == 0 {
		return 0
	}
	return r.penalty * math.Exp2(-float64(now.Sub(r.at))/float64(rules.halfLife))
}

// step takes note of whether there are nodes enough now, and returns when the next step may change something even if that does not; the zero time
// if nothing is under way.
func (r *route) step(rules dampingRules, now time.Time, enough bool) (next time.Time) {
	if enough != r.enough || r.since.IsZero() {
		r.enough, r.since = enough, now
	}
	if r.announced && !enough {
		if due := r.since.Add(rules.withdrawAfter); now.Before(due) {
			return due
		}
		r.announced = false
		r.penalty, r.at = min(r.decayed(rules, now)+perWithdrawal, rules.ceiling()), now
		r.suppressed = r.suppressed || r.penalty >= rules.suppress
	}
	if r.suppressed {
		left := rules.halfLives(max(r.decayed(rules, now), rules.reuse))
		if left > 0 {
			next = now.Add(left)
		} else {
			r.suppressed = false
		}
	}
	if r.announced || !enough {
		return next
	}
	if due := r.since.Add(rules.announceAfter); now.Before(due) {
		if due.After(next) {
			next = due
		}
		return next
	}
	r.announced = !r.suppressed
	return next
}
