package dataplane

import (
	"iter"
	"slices"

	"github.com/lbprim/lbprim/steering"
)

// Count counts packets and the octets in them, from the IP header on (from the Ethernet header
// on, for what a device read and wrote): Packets and their Octets. A super-packet is one packet.
type Count struct{ Packets, Octets uint64 }

func (c *Count) add(n int) {
	c.Packets++
	c.Octets += uint64(n)
}

func (c *Count) merge(o Count) {
	c.Packets += o.Packets
	c.Octets += o.Octets
}

// Traffic is what went to and from a node or a service.
type Traffic struct {
	In  Count // from clients
	Out Count // to clients
	// Sessions were begun.
	Sessions uint64
	// Refused sessions found no node, or no room in the table.
	Refused uint64
}

func (t *Traffic) merge(o *Traffic) {
	t.In.merge(o.In)
	t.Out.merge(o.Out)
	t.Sessions += o.Sessions
	t.Refused += o.Refused
}

// Stats counts what a Plane did since it was made.
type Stats struct {
	Read, Written Count // packets from devices or callers, and to them
	// Passed packets were no business of the Plane's.
	Passed uint64
	// Sessions and Associations are those in the tables now, and how many of them there may be.
	Sessions, Associations       int
	MaxSessions, MaxAssociations int
	// Reselected sessions are mid-stream packets that were given to a new node; Resets were
	// sent, Pings answered and Errors (ICMP) translated; Translated sessions got another source port, since
	// two would have looked alike to their node.
	Reselected, Resets, Pings, Errors, Translated uint64
	// Clamped SYNs had their MSS lowered; Malformed ones had broken TCP options and went on as they were.
	Clamped, Malformed uint64
	Dropped            uint64 // packets, for whatever reason
	// Asked are questions to the peers of a cluster, Adopted the sessions that were taken over by their answers.
	Asked, Adopted uint64
	// Relayed packets were sent to other balancers, Received ones came from them, see [Relay].
	Relayed, Received uint64
	// Marked packets got another DSCP, and Unwrapped ones came from nodes in a tunnel, see [Intercept].
	Marked    uint64
	Unwrapped uint64

	// Delay is about connections with delayed binding.
	Delay DelayStats
}

// DelayStats counts what delayed binding did.
type DelayStats struct {
	// Answered SYNs were answered by the balancer; Confirmed ones had an answer to that, and began a connection. Spliced
	// connections reached a node, Replied ones were answered by the balancer itself.
	Answered, Confirmed, Spliced, Replied uint64
	// Moved counts how often a connection went to another node for a later request, Resumed how often that was one where a connection was parked.
	Moved, Resumed uint64
	// Kept connections are those whose requests are followed now.
	Kept int
	// Held connections are those between the handshake and the splice now.
	Held int
	// HalfOpen handshakes are those of the last seconds that wait for the client, as Plane.Step found; Alarm says that they are, and
	// Alarms how often they began to be, too many (Config.SYNAlarm).
	HalfOpen int
	Alarm    bool
	Alarms   uint64
}

// NodeStats is what a Plane knows of a node.
type NodeStats struct {
	Name string // in its pool
	Traffic
}

// workerStats are guarded by the worker's lock, which a batch holds, so that counting costs
// no more than an addition.
type workerStats struct {
	_        [64]byte
	drops    [numReasons]uint64
	in, out  Count
	passed   uint64
	sink     uint32
	services []Traffic
	nodes    []Traffic

	cookies, confirmed, spliced, replies, moved, resumed uint64

	reselected, resets, pings, errors, translated, clamped, malformed, unwrapped, marked, adopted, relayed, received uint64
	_                                                                                                                [64]byte
}

// fit makes room for the services and nodes of a snapshot.
func (s *workerStats) fit(snap *snapshot) {
	if n := len(snap.services); n > len(s.services) {
		s.services = append(s.services, make([]Traffic, n-len(s.services))...)
	}
	if n := len(snap.nodes); n > len(s.nodes) {
		s.nodes = append(s.nodes, make([]Traffic, n-len(s.nodes))...)
	}
}

// each calls f with the counters of every worker, under its lock.
func (p *Plane) each(f func(s *workerStats)) {
	p.wmu.Lock()
	ws := append([]*Worker(nil), p.workers...)
	p.wmu.Unlock()
	for _, w := range ws {
		w.mu.Lock()
		f(&w.stats)
		w.mu.Unlock()
	}
	p.accel.mu.Lock()
	defer p.accel.mu.Unlock()
	f(&p.accel.stats)
}

// Stats returns the counts so far.
func (p *Plane) Stats() (st Stats) {
	p.each(func(s *workerStats) {
		st.Read.merge(s.in)
		st.Written.merge(s.out)
		st.Passed += s.passed
		st.Reselected += s.reselected
		st.Resets += s.resets
		st.Pings += s.pings
		st.Errors += s.errors
		st.Translated += s.translated
		st.Clamped += s.clamped
		st.Unwrapped += s.unwrapped
		st.Marked += s.marked
		st.Adopted += s.adopted
		st.Relayed += s.relayed
		st.Received += s.received
		st.Malformed += s.malformed
		st.Delay.Answered += s.cookies
		st.Delay.Confirmed += s.confirmed
		st.Delay.Spliced += s.spliced
		st.Delay.Replied += s.replies
		st.Delay.Moved += s.moved
		st.Delay.Resumed += s.resumed
		for _, n := range s.drops {
			st.Dropped += n
		}
	})
	p.asks.mu.Lock()
	st.Asked = p.asks.asked
	st.Adopted += p.asks.adopted
	p.asks.mu.Unlock()
	p.synMu.Lock()
	st.Delay.HalfOpen, st.Delay.Alarm, st.Delay.Alarms = int(p.syns.halfOpen), p.syns.alarm, p.syns.alarms
	p.synMu.Unlock()
	st.Delay.Held = int(p.holds.n.Load())
	st.Delay.Kept = int(p.holds.kept.Load())
	st.Sessions, st.Associations = p.slab.inUse(), p.assocs().Len()
	st.MaxSessions, st.MaxAssociations = p.MaxSessions(), p.MaxAssociations()
	return st
}

// WorkerStats is what one worker did.
type WorkerStats struct {
	// Name is "process" for the Plane's own worker, "queue 0" for what the reader of the first of Config.Devices handled
	// itself, "worker 0" for the first of Config.Workers, and empty for those of NewWorker.
	Name          string
	Read, Written Count
	Dropped       uint64
}

// WorkerStats returns the counts of every worker so far, in the order in which they were made.
func (p *Plane) WorkerStats() (all []WorkerStats) {
	p.wmu.Lock()
	ws := slices.Clone(p.workers)
	p.wmu.Unlock()
	for _, w := range ws {
		w.mu.Lock()
		s := WorkerStats{Name: w.name, Read: w.stats.in, Written: w.stats.out}
		for _, n := range w.stats.drops {
			s.Dropped += n
		}
		w.mu.Unlock()
		all = append(all, s)
	}
	return all
}

// Drops iterates over the reasons for which packets were dropped so far, with their number.
func (p *Plane) Drops() iter.Seq2[Reason, uint64] {
	return func(yield func(Reason, uint64) bool) {
		var sum [numReasons]uint64
		p.each(func(s *workerStats) {
			for i, n := range s.drops {
				sum[i] += n
			}
		})
		for i, n := range sum {
			if n > 0 && !yield(Reason(i), n) {
				return
			}
		}
	}
}

// Services iterates over the services by name, and over those that are gone for as long as sessions of theirs are remembered, or longer: their
// counts are forgotten some time after that.
func (p *Plane) Services() iter.Seq2[string, Traffic] {
	return func(yield func(string, Traffic) bool) {
		snap, sum := p.serviceCounts()
		for svc := range snap.named() {
			if !yield(svc.conf.Name, sum[svc.no]) {
				return
			}
		}
	}
}

// serviceCounts returns the counts of the services of a snapshot, by number.
func (p *Plane) serviceCounts() (*snapshot, []Traffic) {
	defer p.readers.leave(p.readers.enter()) // no number is another one's meanwhile
	snap := p.snap.Load()
	sum := make([]Traffic, len(snap.services))
	p.each(func(s *workerStats) {
		for i := range min(len(sum), len(s.services)) {
			sum[i].merge(&s.services[i])
		}
	})
	return snap, sum
}

// nodeCounts returns the counts of the nodes of a snapshot, by number.
func (p *Plane) nodeCounts() (*snapshot, []Traffic) {
	defer p.readers.leave(p.readers.enter())
	snap := p.snap.Load()
	sum := make([]Traffic, len(snap.nodes))
	p.each(func(s *workerStats) {
		for i := range min(len(sum), len(s.nodes)) {
			sum[i].merge(&s.nodes[i])
		}
	})
	return snap, sum
}

// Nodes iterates over the nodes of all pools.
func (p *Plane) Nodes() iter.Seq2[steering.NodeID, NodeStats] {
	return func(yield func(steering.NodeID, NodeStats) bool) {
		snap, sum := p.nodeCounts()
		for i, n := range snap.nodes {
			if !n.gone && !yield(n.id, NodeStats{n.name, sum[i]}) {
				return
			}
		}
	}
}
