package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// Explanation says what a Plane would do with a packet, and why. It comes from the very code
// that forwards; nothing is changed by asking.
type Explanation struct {
	// Flow is the packet's key; In what it says.
	Flow    clienttable.Flow
	Verdict Verdict
	Reason  Reason // of a drop
	// Out is the flow of the packet that would be sent; the zero Flow if none would.
	Out clienttable.Flow

	// Known says that a session was found; Backwards that the packet comes from the node.
	Known, Backwards bool
	Service, Node    string // "" where none came into it

	// Policy is how the policies were searched, nil if they were not.
	Policy *policy.Explanation[*Service]
	// Steering is how a node was chosen, nil if the metric was not asked.
	Steering *steering.Explanation

	// Steps are what happened, in order.
	Steps []Step
}

// A Step is one decision on a packet's way.
type Step struct {
	Stage string // such as "session", "policy", "steering"
	Text  string // for people
}

// String renders the explanation for people.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %v", e.Flow, e.Verdict)
	if e.Verdict == Dropped {
		fmt.Fprintf(&b, " (%v)", e.Reason)
	}
	if e.Out != (clienttable.Flow{}) {
		fmt.Fprintf(&b, " as %v", e.Out)
	}
	b.WriteByte('\n')
	for _, s := range e.Steps {
		text := strings.ReplaceAll(strings.TrimRight(s.Text, "\n"), "\n", "\n            ")
		fmt.Fprintf(&b, "  %-9s %s\n", s.Stage, text)
	}
	return b.String()
}

// Explain says what would happen now to the packet in b, which begins with its IP header.
func (p *Plane) Explain(b []byte) Explanation {
	tr := new(tracer)
	w := &Worker{p: p, tr: tr, dry: true, recs: p.slab.recs}
	buf := make([]byte, ReadOffset+len(b), ReadOffset+len(b)+wire.MaxReply)
	copy(buf[ReadOffset:], b)
	var v [1]Verdict
	defer p.readers.leave(p.readers.enter())
	out := w.Process(time.Now(), [][]byte{buf}, []int{len(b)}, ReadOffset, v[:])
	e := &tr.e
	e.Verdict = v[0]
	e.Flow = w.packets[0].key
	if len(out) > 0 {
		var view wire.View
		if wire.Parse(out[0][Headroom:], &view) == wire.OK {
			e.Out = flowOf(out[0][Headroom:], &view)
		}
	}
	return *e
}

// ExplainFlow is [Plane.Explain] for the first packet of a flow: of TCP a SYN, of ICMP an echo
// request with the source port as its identifier.
func (p *Plane) ExplainFlow(proto uint8, src, dst netip.AddrPort) (Explanation, error) {
	src = netip.AddrPortFrom(src.Addr().Unmap(), src.Port())
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	if !src.IsValid() || !dst.IsValid() || src.Addr().Is4() != dst.Addr().Is4() {
		return Explanation{}, fmt.Errorf("%w: flow from %v to %v: want two addresses of one family", ErrInvalid, src, dst)
	}
	return p.Explain(wire.BuildProbe(proto, endOf(src), endOf(dst), src.Addr().Is4())), nil
}

// tracer records what a worker decides.
type tracer struct {
	e   Explanation
	new bool // the session has begun with this packet
}

func (t *tracer) step(stage, format string, args ...any) {
	t.e.Steps = append(t.e.Steps, Step{stage, fmt.Sprintf(format, args...)})
}

func (t *tracer) drop(r Reason) {
	t.e.Reason = r
	t.step("drop", "%v", r)
}

func (t *tracer) session(w *Worker, rec *record, dir uint32) {
	if t.new {
		return
	}
	t.e.Known, t.e.Backwards = true, dir == toClient
	t.names(w, rec.service, rec.nodeNo)
	from := "the client"
	if dir == toClient {
		from = "the node"
	}
	t.step("session", "known, from %s: client %v, virtual address %v, service %q, node %q at %v", from, addrPort(&rec.client), addrPort(&rec.vip),
		t.e.Service, t.e.Node, addrPort(&rec.node))
}

func (t *tracer) names(w *Worker, service, node uint32) {
	snap := w.p.snap.Load()
	t.e.Service, t.e.Node = snap.serviceName(service), snap.nodes[node].name
}

func (t *tracer) association(w *Worker, k clienttable.Association, b binding, ok bool) {
	if !ok {
		t.step("client", "%v: not remembered", k)
		return
	}
	name := "gone"
	if n := w.node(steering.NodeID(b.node)); n != nil {
		name = n.name
	}
	t.step("client", "%v: remembered for node %q", k, name)
}

func (t *tracer) policy(table *policy.Table[*Service], p *policy.Packet) (*Service, bool) {
	e := table.Explain(*p)
	t.e.Policy = &e
	t.step("policy", "%v", e)
	if e.Rule == nil {
		return nil, false
	}
	return e.Rule.Value, true
}

func (t *tracer) pick(pool *steering.Pool, k steering.Key) (steering.NodeID, error) {
	e := pool.Explain(k)
	t.e.Steering = &e
	t.step("steering", "%v", e)
	return e.Node, e.Err
}

// acquire says whether a node has taken a further session of a client.
func (t *tracer) acquire(n *node, ok bool) {
	if ok {
		t.step("client", "node %q takes another session", n.name)
		return
	}
	t.step("client", "node %q takes no session now: choosing again", n.name)
}

func (t *tracer) begin(svc *service, n *node) {
	t.e.Service, t.e.Node, t.new = svc.conf.Name, n.name, true
	t.step("bind", "service %q, node %q at %v, by %v", svc.conf.Name, n.name, n.addr, svc.conf.Forward)
}
