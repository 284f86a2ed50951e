package dataplane

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// Accelerator forwards packets of sessions in place of the Plane: in the kernel, in a network adapter, or wherever else packets
// pass before they reach the Plane. It is asked to take over each direction of a session that has had some packets, and
// may refuse. What it does not know, or does not like, it leaves to the Plane, which can always go on: there is
// nothing to hand back.
//
// It must leave alone, so that the Plane sees them: packets with SYN, FIN or RST, fragments, ICMP, packets with IP
// options or extension headers, packets whose time to live ends, and those too long for their way. The methods are called by
// one goroutine at a time; they should not wait for anything.
type Accelerator interface {
	// Install takes over the packets of t.Flow, and reports whether it has. An earlier one of the same Flow is
	// replaced.
	Install(t Translation) bool
	// Usage returns what an installed flow has had since it was installed. ok is false if the accelerator
	// has forgotten the flow, for lack of room or after a fault: the Plane gets its packets from then on.
	Usage(f clienttable.Flow) (u Usage, ok bool)
	// Remove forgets a flow, and returns what it has had. When it returns, no packet is forwarded by it any more.
	Remove(f clienttable.Flow) Usage
}

// Usage is what an [Accelerator] has forwarded of one flow.
type Usage struct {
	Count
	Last time.Time // of the last packet; zero if there was none
}

// Translation is what becomes of the packets of one direction of a session. It is a plain value.
type Translation struct {
	// Flow has the packets as they come.
	Flow clienttable.Flow
	// Forward says how they are sent on.
	Forward Forward
	// Src and Dst are what NAT and FullNAT write; one that is not valid stays as it is.
	Src, Dst netip.AddrPort
	// Node, and for tunnels Outer, the source of the outer packets: where DSR and Tunnelled deliver to.
	Node, Outer netip.Addr
	Tunnel      Tunnel
	// MTU is that of the way to the node, 0 for any: longer packets are the Plane's.
	MTU int
}

// acceleration is a Plane's dealings with its Accelerator.
type acceleration struct {
	dev  Accelerator // nil: there is none
	want chan clienttable.Flow

	mu        sync.Mutex // held while dev is called
	installed map[clienttable.Flow]*accelerated
	some      atomic.Int32 // how many these are
	stats     workerStats  // what was forwarded
}

// accelerated is an installed flow.
type accelerated struct {
	ref  ref
	used Count // that the session's counts have
}

// DefaultAccelerateAfter is the default of Config.AccelerateAfter.
const DefaultAccelerateAfter = 16

// maxWanted bounds the sessions that wait to be installed; the others try again with a later packet.
const maxWanted = 4096

// wanted notes that a session has had so many packets that it is worth to be taken over. It is asked again each time
// the number has doubled.
func (w *Worker) wanted(pk *packet, rec *record, packets uint64) {
	a := &w.p.accel
	if packets < w.snap.accelerateAfter || packets&(packets-1) != 0 || rec.accel.Load() != 0 || w.dry {
		return
	}
	select {
	case a.want <- pk.key:
	default:
	}
}

// acceptable reports whether a session is one that an accelerator can be asked to take over: of those whose packets need no
// more than a change of addresses, or a tunnel.
func (rec *record) acceptable() bool {
	if rec.flags&^(isTCP|hasLocal|oneWay) != 0 {
		return false
	}
	if rec.flags&isTCP == 0 {
		return true
	}
	rec.lock.acquire()
	defer rec.lock.release()
	return rec.tcp.Phase() == clienttable.TCPEstablished
}

// accelerate installs the sessions that are wanted, asks for the use of those installed, and lets go of those that the
// accelerator has forgotten.
func (p *Plane) accelerate(now time.Time) {
	a := &p.accel
	if a.dev == nil {
		return
	}
	for range len(a.want) {
		p.install(<-a.want)
	}
	if a.some.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for f, x := range a.installed {
		u, ok := a.dev.Usage(f)
		if !ok {
			p.forget(f, x)
			continue
		}
		if u.Packets == x.used.Packets {
			continue
		}
		p.credit(x, u.Count)
		// Both directions stay alive by the traffic of one.
		tick := p.tick(now)
		p.sessions().LoadAt(now, f)
		p.peek(f, x.ref, func(rec *record) {
			rec.alive[x.ref.dir()].Store(tick)
			if rec.flags&oneWay == 0 && tick-rec.alive[x.ref.dir()^1].Load() >= ticksPerSecond {
				rec.alive[x.ref.dir()^1].Store(tick)
				p.sessions().LoadAt(now, rec.other(f.Protocol(), x.ref.dir()))
			}
		})
	}
}

// install asks the accelerator to take over a session, of which f is one direction.
func (p *Plane) install(f clienttable.Flow) {
	a := &p.accel
	r, ok := p.sessions().Peek(f)
	if !ok {
		return
	}
	var flows [2]clienttable.Flow
	var ts [2]Translation
	flows[r.dir()] = f
	n := 0
	p.peek(f, r, func(rec *record) {
		snap := p.snap.Load()
		if !rec.acceptable() || rec.accel.Load() != 0 {
			return
		}
		if n = 1; rec.flags&oneWay == 0 {
			flows[r.dir()^1] = rec.other(f.Protocol(), r.dir())
			n = 2
		}
		for dir := range n {
			ts[dir] = p.translation(snap, rec, flows[dir], uint32(dir))
		}
	})
	if n == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for dir, t := range ts[:n] {
		if t.Outer.IsValid() { // as it is by now, see SetAddrs
			t.Outer, _ = p.snap.Load().addr(t.Node.Is6())
		}
		if !a.dev.Install(t) {
			continue
		}
		mine := ref{r.at&^1 | uint32(dir), r.node}
		// The session may have ended, or changed, since it was looked at: then nobody else takes the flow out again.
		if now, ok := p.sessions().Peek(t.Flow); !ok || now != mine {
			a.dev.Remove(t.Flow)
			continue
		}
		a.installed[t.Flow] = &accelerated{ref: mine}
		a.some.Store(int32(len(a.installed)))
		p.slab.recs[mine.record()].accel.Add(1)
	}
}

func (p *Plane) translation(snap *snapshot, rec *record, f clienttable.Flow, dir uint32) Translation {
	y := snap.ways[rec.way]
	t := Translation{Flow: f, Forward: y.forward, MTU: y.mtu}
	if y.forward.direct() {
		t.Node, t.Tunnel = addrPort(&rec.node).Addr(), y.tunnel
		t.Outer, _ = snap.addr(t.Node.Is6())
		return t
	}
	src, dst := rec.ends(dir)
	if src != nil {
		t.Src = addrPort(src)
	}
	if dst != nil {
		t.Dst = addrPort(dst)
	}
	return t
}

// reinstall has the accelerator send from the balancer's own addresses as they are now.
func (p *Plane) reinstall() {
	a := &p.accel
	if a.some.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	snap := p.snap.Load()
	for f, x := range a.installed {
		t := p.translation(snap, &p.slab.recs[x.ref.record()], f, x.ref.dir())
		if !t.Outer.IsValid() {
			continue
		}
		p.credit(x, a.dev.Remove(f).Count)
		if x.used = (Count{}); !a.dev.Install(t) {
			p.forget(f, x)
		}
	}
}

// credit adds to the counts of a session what an accelerator has forwarded. a.mu is held.
func (p *Plane) credit(x *accelerated, used Count) {
	more := Count{used.Packets - x.used.Packets, used.Octets - x.used.Octets}
	x.used = used
	// As long as the flow is installed, the record is its session's.
	rec, dir, s := &p.slab.recs[x.ref.record()], x.ref.dir(), &p.accel.stats
	rec.credit(dir, more)
	s.fit(p.snap.Load())
	if dir == toNode {
		s.nodes[rec.nodeNo].In.merge(more)
		s.services[rec.service].In.merge(more)
	} else {
		s.nodes[rec.nodeNo].Out.merge(more)
		s.services[rec.service].Out.merge(more)
	}
}

// forget forgets an installed flow that the accelerator does not have any more. a.mu is held.
func (p *Plane) forget(f clienttable.Flow, x *accelerated) {
	a := &p.accel
	delete(a.installed, f)
	a.some.Store(int32(len(a.installed)))
	p.slab.recs[x.ref.record()].accel.Add(^uint32(0))
}

// fallBack has the Plane forward a session itself again. Of a TCP connection it does not know what numbers were used
// meanwhile, and follows it like one whose beginning it has not seen.
func (p *Plane) fallBack(rec *record, proto uint8) {
	for dir := range uint32(2) {
		p.unaccelerate(rec.other(proto, dir^1), rec)
	}
	rec.lock.acquire()
	defer rec.lock.release()
	if rec.flags&oneWay != 0 {
		rec.tcp = clienttable.OneWayTCP()
	} else {
		rec.tcp = clienttable.TCPState{}
	}
}

// unaccelerate takes one direction of a session out of the accelerator, if it is there.
func (p *Plane) unaccelerate(f clienttable.Flow, rec *record) {
	a := &p.accel
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.installed[f]
	if x == nil || &p.slab.recs[x.ref.record()] != rec {
		return
	}
	p.credit(x, a.dev.Remove(f).Count)
	p.forget(f, x)
}

// loseAccelerated takes the sessions of a node out of the accelerator.
func (p *Plane) loseAccelerated(id uint32) {
	a := &p.accel
	if a.some.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for f, x := range a.installed {
		if x.ref.node == id {
			p.credit(x, a.dev.Remove(f).Count)
			p.forget(f, x)
		}
	}
}

// ending are the flags of packets by which a session changes, and which accelerators leave to the Plane.
const ending = wire.SYN | wire.FIN | wire.RST
