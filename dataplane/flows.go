package dataplane

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/internal/wire"
)

// FlowExport says how a Plane tells a collector about the sessions of services that have Service.ExportFlows set, and of redirected flows that a path rule asks for (Intercept). Each
// direction of a session is a flow of its own. It is plain data.
type FlowExport struct {
	// Exporter sends the records. Required. It stays its owner's: the Plane flushes it, and does not close its connection.
	Exporter *flowexport.Exporter
	// All exports the flows of every service, whether it has ExportFlows set or not.
	All bool
	// Active is after how long a flow that goes on is reported. Default 1 minute; negative: only its end is.
	Active time.Duration
	// Inactive is after how long without a packet a flow is reported, before its session has aged. Default 15 s;
	// negative: never.
	Inactive time.Duration
	// Sample chooses one session in so many, by a hash of its flow. Default 1: all.
	Sample int
}

// FlowStats counts what was exported.
type FlowStats struct {
	Reported uint64 // flow records given to the Exporter
	Lost     uint64 // ends of sessions that came faster than they could be reported
	Failed   uint64 // records the Exporter had an error for
}

// resolve returns f with its defaults, or all its faults.
func (f *FlowExport) resolve() (*FlowExport, error) {
	c := *f
	var errs []error
	if c.Exporter == nil {
		errs = append(errs, invalid("FlowExport.Exporter", nil, "an exporter"))
	}
	if c.Active == 0 {
		c.Active = time.Minute
	}
	if c.Inactive == 0 {
		c.Inactive = 15 * time.Second
	}
	if c.Sample < 0 || c.Sample > 1<<30 {
		errs = append(errs, invalid("FlowExport.Sample", c.Sample, "1 to 1073741824, or 0 for 1"))
	}
	return &c, errors.Join(errs...)
}

// maxEnded bounds the ends of sessions that wait to be reported.
const maxEnded = 1 << 16

// flowExport is the state of flow export. Workers only ever put the ends of sessions into it.
type flowExport struct {
	conf atomic.Pointer[FlowExport]

	endMu sync.Mutex
	ended []endedSession
	lost  atomic.Uint64

	mu       sync.Mutex // for those who report
	known    map[flowID]*flowState
	looked   time.Time
	round    uint32
	reported atomic.Uint64
	failed   atomic.Uint64
}

// flowID tells the sessions of one key apart.
type flowID struct {
	key   clienttable.Flow
	begun time.Time
}

// flowState is what has been told of a session.
type flowState struct {
	told, seen [2]Count
	reported   [2]time.Time // zero: never
	changed    [2]time.Time // when packets were seen last
	round      uint32       // of the look that saw it last
}

type endedSession struct {
	id  flowID
	s   Session
	why flowexport.EndReason
}

// SetFlowExport changes how flows are exported, while packets are forwarded; nil ends it, after what is not yet told has been told.
func (p *Plane) SetFlowExport(f *FlowExport) error {
	if f == nil {
		p.flows.end(p, time.Now())
		return nil
	}
	c, err := f.resolve()
	if err != nil {
		return err
	}
	x := &p.flows
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.conf.Swap(c); old != nil && old.Exporter != c.Exporter {
		x.flush(old, time.Now())
	}
	return nil
}

// FlowStats returns the counts so far.
func (p *Plane) FlowStats() FlowStats {
	x := &p.flows
	return FlowStats{Reported: x.reported.Load(), Lost: x.lost.Load(), Failed: x.failed.Load()}
}

// chosen reports whether a session of a service is exported.
func (c *FlowExport) chosen(p *Plane, k clienttable.Flow, service uint32, flags uint16) bool {
	if svc := p.snap.Load().service(service); svc == nil || !c.All && !svc.conf.ExportFlows && flags&isExported == 0 {
		return false
	}
	return flowexport.NewSampler(uint32(c.Sample)).Sampled(k.Hash(p.cfg.Seed))
}

// flowEnds notes the end of a session, whose entry towards the node has left the table.
func (p *Plane) flowEnds(k clienttable.Flow, rec *record, why clienttable.Reason) {
	c := p.flows.conf.Load()
	if c == nil || !c.chosen(p, k, rec.service, rec.flags) {
		return
	}
	x := &p.flows
	x.endMu.Lock()
	full := len(x.ended) == maxEnded
	x.endMu.Unlock()
	if full {
		x.lost.Add(1)
		return
	}
	e := endedSession{s: Session{Protocol: k.Protocol(), Client: k.Src(), VIP: k.Dst()}, why: flowexport.ForcedEnd}
	e.s.fill(p, rec)
	e.id = flowID{k, e.s.Begun}
	switch {
	case e.s.Phase == clienttable.TCPClosed || e.s.Phase == clienttable.TCPReset:
		e.why = flowexport.EndOfFlow
	case why == clienttable.Expired:
		e.why = flowexport.IdleTimeout
	case why == clienttable.Evicted:
		e.why = flowexport.LackOfRoom
	}
	x.endMu.Lock()
	x.ended = append(x.ended, e)
	x.endMu.Unlock()
}

// StepFlows reports the flows that are due. [Plane.Run] calls it once a second; callers of Process do it themselves.
func (p *Plane) StepFlows(now time.Time) {
	x := &p.flows
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.conf.Load()
	if c == nil {
		return
	}
	x.ends(c, now)
	if every := c.every(); now.Sub(x.looked) >= every || now.Before(x.looked) {
		x.looked = now
		x.look(p, c, now, false)
	}
	x.flush(c, now)
}

// every is how often all sessions are looked at: often enough for the timeouts, and no more often, since there may be
// millions of sessions.
func (c *FlowExport) every() time.Duration {
	d := time.Minute
	for _, t := range []time.Duration{c.Active, c.Inactive} {
		if t > 0 {
			d = min(d, t/4)
		}
	}
	return max(d, time.Second/2)
}

// end reports everything once more, and then nothing.
func (x *flowExport) end(p *Plane, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.conf.Load()
	if c == nil {
		return
	}
	x.ends(c, now)
	x.look(p, c, now, true)
	x.conf.Store(nil)
	x.flush(c, now)
	x.known = nil
}

// ends reports the sessions that have ended. x.mu is held.
func (x *flowExport) ends(c *FlowExport, now time.Time) {
	x.endMu.Lock()
	ended := x.ended
	x.ended = nil
	x.endMu.Unlock()
	for i := range ended {
		e := &ended[i]
		st := x.state(e.id, &e.s, now)
		for dir := range st.seen {
			x.report(c, st, &e.s, dir, e.why, now)
		}
		delete(x.known, e.id)
	}
}

// state returns what has been told of a session.
func (x *flowExport) state(id flowID, s *Session, now time.Time) *flowState {
	if x.known == nil {
		x.known = make(map[flowID]*flowState)
	}
	st := x.known[id]
	if st == nil {
		st = &flowState{changed: [2]time.Time{s.Begun, s.Begun}}
		x.known[id] = st
	}
	for dir, n := range [2]Count{s.In, s.Out} {
		if n != st.seen[dir] {
			st.seen[dir], st.changed[dir] = n, now
		}
	}
	return st
}

// look looks at all sessions. x.mu is held.
func (x *flowExport) look(p *Plane, c *FlowExport, now time.Time, last bool) {
	x.round++
	for k, r := range p.sessions().All() {
		if r.dir() != toNode {
			continue
		}
		service, flags, ok := uint32(0), uint16(0), false
		p.peek(k, r, func(rec *record) { service, flags, ok = rec.service, rec.flags, true })
		if !ok || !c.chosen(p, k, service, flags) {
			continue
		}
		s, ok := p.session(k, r)
		if !ok {
			continue
		}
		st := x.state(flowID{k, s.Begun}, &s, now)
		st.round = x.round
		for dir := range st.seen {
			since := st.reported[dir]
			if since.IsZero() {
				since = s.Begun
			}
			why, due := flowexport.Due(now, st.changed[dir], since, c.Active, c.Inactive)
			if last {
				why, due = flowexport.ForcedEnd, true
			}
			if due {
				x.report(c, st, &s, dir, why, now)
			}
		}
	}
	for id, st := range x.known {
		if st.round != x.round { // its end found no room, or it is not chosen any more
			delete(x.known, id)
		}
	}
}

// report tells the collector what is new of a direction of a session. x.mu is held.
func (x *flowExport) report(c *FlowExport, st *flowState, s *Session, dir int, why flowexport.EndReason, now time.Time) {
	n := Count{st.seen[dir].Packets - st.told[dir].Packets, st.seen[dir].Octets - st.told[dir].Octets}
	if n.Packets == 0 {
		return
	}
	f := s.flow(uint32(dir))
	f.Packets, f.Octets, f.Reason = n.Packets, n.Octets, why
	f.Start, f.End = st.reported[dir], s.Last
	if f.Start.IsZero() {
		f.Start = s.Begun
	}
	if why == flowexport.ActiveTimeout {
		f.End = now
	}
	if f.End.Before(f.Start) {
		f.End = f.Start
	}
	st.told[dir], st.reported[dir] = st.seen[dir], now
	x.reported.Add(1)
	if c.Exporter.AddAt(now, &f) != nil {
		x.failed.Add(1)
	}
}

func (x *flowExport) flush(c *FlowExport, now time.Time) {
	if c.Exporter.FlushAt(now) != nil {
		x.failed.Add(1)
	}
}

// flow returns a direction of a session as a flow, without its counts.
func (s *Session) flow(dir uint32) flowexport.Flow {
	f := flowexport.Flow{Src: s.Client, Dst: s.VIP, Protocol: s.Protocol, Policy: s.Service, Node: s.NodeName}
	there := s.Client
	if s.Local.IsValid() {
		there = s.Local
	}
	if dir == toClient {
		f.Src, f.Dst = s.Node, there
		f.NATSrc, f.NATDst = s.VIP, s.Client
	} else if !s.pastBalancer {
		f.NATSrc, f.NATDst = there, s.Node
	}
	switch s.Protocol {
	case wire.ProtoTCP:
		f.TCPFlags = s.flags(dir)
	case wire.ProtoICMP:
		f.ICMPType = [2]uint8{wire.ICMPEcho, wire.ICMPEchoReply}[dir]
	case wire.ProtoICMPv6:
		f.ICMPType = [2]uint8{wire.ICMPv6Echo, wire.ICMPv6EchoReply}[dir]
	}
	if isPing(s.Protocol) {
		for _, a := range []*netip.AddrPort{&f.Src, &f.Dst, &f.NATSrc, &f.NATDst} {
			if a.IsValid() {
				*a = netip.AddrPortFrom(a.Addr(), 0)
			}
		}
	}
	return f
}

// flags are the flags that a direction of a TCP connection must have had, to be where it is.
func (s *Session) flags(dir uint32) uint8 {
	var f uint8
	switch p := s.Phase; p {
	case clienttable.TCPNone:
	case clienttable.TCPSynSent:
		if dir == toNode {
			f = wire.SYN
		}
	case clienttable.TCPSynReceived:
		if f = wire.SYN; dir == toClient {
			f |= wire.ACK
		}
	default:
		f = wire.SYN | wire.ACK
		if p == clienttable.TCPReset {
			f |= wire.RST
		}
		if p == clienttable.TCPClosing || p == clienttable.TCPClosed || p == clienttable.TCPFinClient && dir == toNode || p == clienttable.TCPFinServer && dir == toClient {
			f |= wire.FIN
		}
	}
	return f
}
