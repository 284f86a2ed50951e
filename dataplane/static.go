package dataplane

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/steering"
)

// Static binds clients to a node of the service's pool: their new sessions go there while it may have them, whatever the metric says
// and whatever they had before; else they are balanced like any others. It is plain data.
type Static struct {
	Clients netip.Prefix // of several that match the longest counts
	Node    string       // its name; a pool without such a node is no fault, since nodes come and go
}

// statics finds the node of a client. The nil statics knows none.
type statics struct {
	bits  []int // lengths of prefixes that there are, longest first
	nodes map[netip.Prefix]string
}

// newStatics returns nil for no entries, or all faults of them.
func newStatics(entries []Static, bad func(field string, value any, want string)) *statics {
	if len(entries) == 0 {
		return nil
	}
	s := &statics{nodes: make(map[netip.Prefix]string, len(entries))}
	for i, e := range entries {
		if !e.Clients.IsValid() || e.Clients != e.Clients.Masked() || e.Clients.Addr().Is4In6() {
			bad(fmt.Sprintf("Static[%d].Clients", i), e.Clients, "a prefix without bits behind its length, IPv4 in its plain form")
			continue
		}
		if e.Node == "" {
			bad(fmt.Sprintf("Static[%d].Node", i), `""`, "the name of a node")
		}
		if o, ok := s.nodes[e.Clients]; ok && o != e.Node {
			bad(fmt.Sprintf("Static[%d].Clients", i), e.Clients, fmt.Sprintf("one node, not %q as well as %q", o, e.Node))
		}
		s.nodes[e.Clients] = e.Node
		if n := e.Clients.Bits(); !slices.Contains(s.bits, n) {
			s.bits = append(s.bits, n)
		}
	}
	slices.SortFunc(s.bits, func(a, b int) int { return cmp.Compare(b, a) })
	return s
}

func (s *statics) lookup(client netip.Addr) (node string, ok bool) {
	if s == nil {
		return "", false
	}
	for _, n := range s.bits {
		if p, err := client.Prefix(n); err == nil {
			if node, ok = s.nodes[p]; ok {
				return node, true
			}
		}
	}
	return "", false
}

// static returns the node that a client is bound to by configuration, with a session counted on it, or nil.
func (w *Worker) static(svc *service, q *pool, client netip.Addr) *node {
	name, ok := svc.statics.lookup(client)
	if !ok {
		return nil
	}
	id, known := q.ID(name)
	if w.tr != nil {
		w.tr.step("static", "%v belongs to node %q, which the pool has: %v", client, name, known)
	}
	if !known {
		return nil
	}
	if n := w.node(id); n != nil && n.pool == q && w.acquire(q, n) {
		return n
	}
	return nil
}

// pick is the pool's choice for a flow that is to go to the same node on every balancer.
func (s *service) pick(k steering.Key) (steering.NodeID, error) {
	if name, ok := s.statics.lookup(k.Client); ok {
		if id, ok := s.pool.ID(name); ok && s.pool.Acquire(id) {
			return id, nil
		}
	}
	return s.pool.Pick(k)
}
