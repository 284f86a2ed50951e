package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRouteDelays(t *testing.T) {
	rules := (&damping{}).rules()
	rules.withdrawAfter = time.Second
	var r route
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }

	require.Equal(t, at(2), r.step(rules, at(0), true), "announced after two seconds of enough")
	require.False(t, r.announced)
	require.Zero(t, r.step(rules, at(1), false), "not enough meanwhile")
	require.Equal(t, at(5), r.step(rules, at(3), true), "so the time begins again")
	r.step(rules, at(4.9), true)
	require.False(t, r.announced)
	require.Zero(t, r.step(rules, at(5), true))
	require.True(t, r.announced)

	require.Equal(t, at(8), r.step(rules, at(7), false), "a second may pass with too few")
	require.True(t, r.announced)
	r.step(rules, at(7.5), true)
	require.Equal(t, at(9), r.step(rules, at(8), false))
	require.True(t, r.announced)
	r.step(rules, at(9), false)
	require.False(t, r.announced)
	require.Equal(t, float64(perWithdrawal), r.decayed(rules, at(9)))
	require.InDelta(t, perWithdrawal/2, r.decayed(rules, at(69)), 0.001)
}

func TestRouteDamping(t *testing.T) {
	rules := dampingRules{halfLife: time.Minute, longest: 10 * time.Minute, suppress: 3000, reuse: 750}
	now := time.Unix(1000, 0)
	var r route
	flap := func() {
		r.step(rules, now, true)
		now = now.Add(time.Second)
		r.step(rules, now, false)
		now = now.Add(time.Second)
	}
	for i := range 3 {
		require.Falsef(t, r.suppressed, "%d", i)
		flap()
	}
	require.False(t, r.suppressed, "2999 or so: forgiven a little in between")
	flap()
	require.True(t, r.suppressed)
	next := r.step(rules, now, true)
	require.False(t, r.announced, "suppressed, though there are nodes enough")
	require.Greater(t, next.Sub(now), 2*time.Minute, "some 4000 fall to 750 in 2.4 half-lives")
	require.Less(t, next.Sub(now), 150*time.Second)
	r.step(rules, next.Add(-time.Millisecond), true)
	require.False(t, r.announced)
	r.step(rules, next, true)
	require.True(t, r.announced)

	// However often it flaps, it is not away for longer than longest.
	now, rules.longest = next, 5*time.Minute
	for range 100 {
		r.announced, r.suppressed = true, false // as if it had been announced each time
		flap()
	}
	next = r.step(rules, now, true)
	require.InDelta(t, 5*60, next.Sub(now).Seconds(), 2)
}

// A route that is stepped only when it asked for it decides as one that is stepped all the time.
func TestRouteAsksForItsSteps(t *testing.T) {
	rules := dampingRules{announceAfter: 3 * time.Second, withdrawAfter: 2 * time.Second, halfLife: 20 * time.Second, longest: 60 * time.Second, suppress: 2500, reuse: 800}
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			start := time.Unix(5000, 0)
			var fine, lazy route
			var next time.Time
			state, last := seed*0x9e3779b97f4a7c15+1, false
			for s := range 600 {
				now := start.Add(time.Duration(s) * time.Second)
				state ^= state << 13
				state ^= state >> 7
				state ^= state << 17
				enough := last
				if state%7 == 0 {
					enough = !last
				}
				// The lazy one is asked only when something changed, or when its last step wanted it; the other one also at every second.
				for !next.IsZero() && next.Before(now) {
					fine.step(rules, next, last)
					next = lazy.step(rules, next, last)
				}
				fine.step(rules, now, enough)
				if enough != last || !next.IsZero() && !next.After(now) || s == 0 {
					next = lazy.step(rules, now, enough)
				}
				last = enough
				require.Equalf(t, fine, lazy, "second %d", s)
			}
		})
	}
}
