package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/steering"
)

// pressure is from when on a node counts as pressed. Without it none is.
type pressure struct {
	Sessions *parts   `yaml:"sessions" doc:"By the part of its max-sessions that a node has, such as {high: 0.8, severe: 0.95}."`
	Response *periods `yaml:"response" doc:"By the moving average of the times that the node's check takes, such as {high: 200ms, severe: 1s}. It needs check."`
}

type parts struct {
	High   float64 `yaml:"high" doc:"From this part on a node counts at half its weight; it is left again below seven eighths of it."`
	Severe float64 `yaml:"severe" doc:"From this part on a node gets no new session; it is left again below seven eighths of it."`
}

type periods struct {
	High   time.Duration `yaml:"high" doc:"From this time on a node counts at half its weight; it is left again below seven eighths of it."`
	Severe time.Duration `yaml:"severe" doc:"From this time on a node gets no new session; it is left again below seven eighths of it."`
}

func (p *pressure) validate(f *conf.File, path string) {
	if p == nil {
		return
	}
	if p.Sessions == nil && p.Response == nil && !f.Faulty(path) {
		f.Add(path, "want sessions, response or both")
	}
	if s := p.Sessions; s != nil && !f.Faulty(path+".sessions") {
		at := path + ".sessions"
		for _, x := range []struct {
			key   string
			value float64
		}{{"high", s.High}, {"severe", s.Severe}} {
			if !(x.value >= 0 && x.value <= 1) {
				f.Add(at+"."+x.key, "%v: want a part from 0 to 1", x.value)
			}
		}
		steps(f, at, s.High > 0, s.Severe > 0, s.Severe < s.High)
	}
	if r := p.Response; r != nil && !f.Faulty(path+".response") {
		at := path + ".response"
		for _, x := range []struct {
			key   string
			value time.Duration
		}{{"high", r.High}, {"severe", r.Severe}} {
			if x.value < 0 {
				f.Add(at+"."+x.key, "%v: want a positive duration", x.value)
			}
		}
		steps(f, at, r.High > 0, r.Severe > 0, r.Severe < r.High)
	}
}

func steps(f *conf.File, path string, high, severe, less bool) {
	if !high && !severe && !f.Faulty(path) {
		f.Add(path, "want high, severe or both")
	}
	if high && severe && less {
		f.Add(path+".severe", "want high or more")
	}
}

// library is the pressure as the pool wants it.
func (p *pressure) library() (out steering.Pressure) {
	thresholds := func(high, severe float64) steering.Thresholds {
		return steering.Thresholds{HighRise: high, HighFall: high * 7 / 8, SevereRise: severe, SevereFall: severe * 7 / 8}
	}
	if p == nil {
		return out
	}
	if s := p.Sessions; s != nil {
		out.Sessions = thresholds(s.High, s.Severe)
	}
	if r := p.Response; r != nil {
		out.Latency = thresholds(r.High.Seconds(), r.Severe.Seconds())
	}
	return out
}

// press reports to the pools how hard their nodes are pressed, once a second.
func (in *instance) press(ctx context.Context) error {
	return periodically(ctx, time.Second, in.pressOnce)
}

func (in *instance) pressOnce() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for name, fm := range in.conf.Farms {
		pool := in.pools.byFarm[name]
		for id, st := range pool.All() {
			var g steering.Gauges
			if fm.Pressure != nil {
				g = gauges(&st)
			}
			if fm.Pressure != nil || st.Pressure != steering.Normal {
				pool.Report(id, g)
			}
		}
	}
}

// limit is the most sessions that a node may have; 0 is no limit.
func limit(st *steering.NodeStatus) int {
	if st.Advice.MaxSessions > 0 {
		return st.Advice.MaxSessions
	}
	return st.Node.MaxSessions
}

// gauges are what a node's pressure is measured by.
func gauges(st *steering.NodeStatus) (g steering.Gauges) {
	if most := limit(st); most > 0 {
		g.Sessions = float64(st.Sessions) / float64(most)
	}
	g.Latency = st.ResponseTime
	return g
}

// pressed says by what a node is pressed, for people.
func pressed(n *nodeReply) string {
	var why []string
	if n.Max > 0 {
		why = append(why, fmt.Sprintf("%d of %d sessions", n.Sessions, n.Max))
	}
	if n.Response > 0 {
		why = append(why, fmt.Sprintf("%v to respond", time.Duration(n.Response*float64(time.Second)).Round(time.Millisecond)))
	}
	return strings.Join(why, ", ")
}
