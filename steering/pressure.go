package steering

import (
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// A Level is how hard a node is pressed. The zero Level is Normal.
type Level uint8

const (
	// Normal nodes count in full.
	Normal Level = iota
	// High pressure: the node counts at half its weight or capacity.
	High
	// Severe pressure: the node gets no new pass-through session. Optimised ones reach
	// it only when no other node is left.
	Severe
)

var levelNames = enum.Of[Level]("steering: pressure level", "normal", "high", "severe")

// String returns the name of l as used in configurations.
func (l Level) String() string { return levelNames.String(l) }

// AppendText implements [encoding.TextAppender].
func (l Level) AppendText(b []byte) ([]byte, error) { return levelNames.Append(b, l) }

// MarshalText implements [encoding.TextMarshaler].
func (l Level) MarshalText() ([]byte, error) { return l.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Level) UnmarshalText(text []byte) error { return levelNames.Parse(l, text) }

// Factor2 is twice the part of its capacity a node at level l counts with: 2, 1 or 0.
func (l Level) Factor2() int {
	switch l {
	case Normal:
		return 2
	case High:
		return 1
	}
	return 0
}

// Gauges are readings of a node, as its monitor reports them with [Pool.Report].
// Memory, CPU and Sessions are parts of what the node has, 1 being all of it. A zero
// reading is an idle node.
type Gauges struct {
	Memory, CPU, Sessions float64
	Latency               time.Duration // of an answer
}

// Thresholds turn one gauge into a [Level]. A node rises to a level when the reading
// reaches Rise and leaves it when the reading is below Fall, so that it does not flap
// between the two. A zero Rise switches the level off for this gauge.
type Thresholds struct {
	HighRise, HighFall     float64 // to and from High
	SevereRise, SevereFall float64 // to and from Severe
}

// Pressure are the thresholds of all gauges. The zero Pressure takes the default for
// Memory, CPU and Sessions: high from 0.80 until below 0.70, severe from 0.95 until
// below 0.85. Latency is in seconds and has no default.
type Pressure struct {
	Memory, CPU, Sessions, Latency Thresholds
}

func (p Pressure) withDefaults() Pressure {
	if p == (Pressure{}) {
		d := Thresholds{HighRise: 0.80, HighFall: 0.70, SevereRise: 0.95, SevereFall: 0.85}
		p.Memory, p.CPU, p.Sessions = d, d, d
	}
	return p
}

// next returns the level after reading x, given the level before.
func (t *Thresholds) next(was Level, x float64) Level {
	severe := t.SevereRise > 0 && (x >= t.SevereRise || was == Severe && x >= t.SevereFall)
	if severe {
		return Severe
	}
	if t.HighRise > 0 && (x >= t.HighRise || was != Normal && x >= t.HighFall) {
		return High
	}
	return Normal
}

// A Gauger follows the readings of one node. The zero Gauger is at Normal. It is not
// safe for concurrent use.
type Gauger struct{ memory, cpu, sessions, latency Level }

// Update takes a reading and returns the level: the highest any gauge asks for.
func (g *Gauger) Update(p *Pressure, r Gauges) Level {
	g.memory = p.Memory.next(g.memory, r.Memory)
	g.cpu = p.CPU.next(g.cpu, r.CPU)
	g.sessions = p.Sessions.next(g.sessions, r.Sessions)
	g.latency = p.Latency.next(g.latency, r.Latency.Seconds())
	return max(g.memory, g.cpu, g.sessions, g.latency)
}

// set forces the level, keeping no gauge above it.
func (g *Gauger) set(l Level) { *g = Gauger{memory: l, cpu: l, sessions: l, latency: l} }
