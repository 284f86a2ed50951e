package steering

import (
	"fmt"
	"strings"
)

// An Explanation says how [Pool.Pick] would choose for a Key, and why. It comes from
// the code of Pick itself.
type Explanation struct {
	Key    Key
	Metric Metric // that chose
	Node   NodeID // 0 if Err is not nil
	Name   string // of Node
	Err    error  // why there is no node
	Steps  []Step // in the order of the search
}

// A Step is one node that was looked at.
type Step struct {
	Node  string       // its name
	ID    NodeID       // its number
	Group string       // which nodes competed: "members", "backups", …
	State Availability // why it may have the session or not
	// Chosen marks the node that gets the session. Available nodes not chosen lost to
	// it by the metric.
	Chosen   bool
	Sessions int64
	Share    float64 // the node's part of its group by weight
}

// String formats e for people, one line a step.
func (e Explanation) String() string {
	var b strings.Builder
	if e.Err != nil {
		fmt.Fprintf(&b, "%s: no node: %v", e.Metric, e.Err)
	} else {
		fmt.Fprintf(&b, "%s: node %s", e.Metric, e.Name)
	}
	for _, s := range e.Steps {
		verdict := s.State.String()
		if s.Chosen {
			verdict = "chosen"
		}
		fmt.Fprintf(&b, "\n  %s %q: %s, %d sessions, share %.3f", s.Group, s.Node, verdict, s.Sessions, s.Share)
	}
	return b.String()
}

// A tracer records a pick that is only asked about.
type tracer struct{ e *Explanation }

func (t *tracer) passed(g *group, i int, why Availability) {
	for n := range t.e.Steps {
		if s := &t.e.Steps[n]; s.ID == g.nodes[i].h.id {
			s.State = why
			return
		}
	}
}

// enter notes the nodes that compete in g.
func (t *tracer) enter(g *group) {
	for i := range g.nodes {
		c := &g.nodes[i]
		t.e.Steps = append(t.e.Steps, Step{
			Node: c.name, ID: c.h.id, Group: g.name, State: Available, Sessions: c.h.sessions(), Share: g.share(i),
		})
		if c.h.full(c.limit) {
			t.e.Steps[len(t.e.Steps)-1].State = AtLimit
		}
	}
}

func (t *tracer) chosen(g *group, i int) {
	t.e.Node, t.e.Name = g.nodes[i].h.id, g.nodes[i].name
	for n := range t.e.Steps {
		s := &t.e.Steps[n]
		s.Chosen = s.ID == t.e.Node
	}
}
