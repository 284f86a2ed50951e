package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/steering/path"
)

// In a cluster the fragments of a packet may come by several balancers, as later ones carry no ports to spread them by. The one that has the first
// announces what became of it, under what they have in common: which session they follow, or that they pass, are routed or echoed. Another one asks
// for that, once for a packet, while its fragments wait for a first one anyhow.

// maxTold is how many packets are announced between two Steps, that is in a second: each takes room among the peers for longer than that, and anybody can
// send fragments.
const maxTold = 1024

// loose are fragments that waited and whose course is known now, of workers with a link.
type loose struct {
	waiting [][]byte
	course  course
	link    Link
}

// nobody takes the place of a node's name where fragments follow no session. Peers want some name.
const nobody = "-"

var fateNames = [...]string{follows: "follows", passes: "passes", routes: "routes", echoes: "echoes"}

// courseText is the note of a packet in fragments: the service, if there is one, the session and the identification that they leave with; where
// they follow no session what they do instead, the identification, and what they are marked with.
func courseText(service string, c *course) string {
	if c.fate != follows {
		return fmt.Sprintf("%s\x00#%s %x %d", service, fateNames[c.fate], c.id, c.dscp)
	}
	return fmt.Sprintf("%s\x00#%d %v %v %x", service, c.session.Protocol(), c.session.Src(), c.session.Dst(), c.id)
}

func parseCourse(text string) (service string, c course, err error) {
	service, text, _ = strings.Cut(text, "\x00#")
	parts := strings.Fields(text)
	if len(parts) == 3 {
		c, err = parseFate(parts)
		return service, c, err
	}
	if len(parts) != 4 {
		return "", c, fmt.Errorf("course of %d parts, want 3 or 4", len(parts))
	}
	proto, err := strconv.ParseUint(parts[0], 10, 8)
	if err != nil {
		return "", c, err
	}
	var ends [2]netip.AddrPort
	for i := range ends {
		if ends[i], err = netip.ParseAddrPort(parts[1+i]); err != nil {
			return "", c, err
		}
		if a := ends[i].Addr(); a.Is4In6() || a.Zone() != "" || a.Is4() != ends[0].Addr().Is4() {
			return "", c, fmt.Errorf("address %v, want one of the other's family in its plain form", a)
		}
	}
	id, err := strconv.ParseUint(parts[3], 16, 32)
	return service, course{fate: follows, session: clienttable.MakeFlow(uint8(proto), ends[0], ends[1]), id: uint32(id)}, err
}

// parseFate reads the note of fragments that follow no session.
func parseFate(parts []string) (c course, err error) {
	at := slices.Index(fateNames[:], parts[0])
	if at <= int(follows) {
		return c, fmt.Errorf("course %q, want passes, routes or echoes", parts[0])
	}
	id, err := strconv.ParseUint(parts[1], 16, 32)
	if err != nil {
		return c, err
	}
	dscp, err := strconv.ParseUint(parts[2], 10, 8)
	if err != nil || dscp > 64 {
		return c, fmt.Errorf("DSCP %q, want 0 to 64", parts[2])
	}
	return course{fate: fate(at), id: uint32(id), dscp: path.DSCP(dscp)}, nil
}

// announceFragments tells the peers what becomes of the fragments of a packet, whose first one is here. rec is the session that they follow, if they do.
func (w *Worker) announceFragments(k clienttable.Flow, c *course, rec *record) {
	if !w.p.fragments.tell(k) {
		return
	}
	service, node := "", nobody
	switch {
	case rec != nil:
		service, node = w.snap.serviceName(rec.service), w.snap.nodes[rec.nodeNo].name
	case c.fate == routes:
		service = w.snap.serviceName(c.service)
	}
	w.p.cfg.Peers.Announce(k.Protocol(), k.Src(), k.Dst(), node, courseText(service, c))
}

// askFragments asks the peers what a fragment follows that waits for the first one.
func (w *Worker) askFragments(k clienttable.Flow) {
	p, link := w.p, w.link
	if p.cfg.Peers == nil || !p.fragments.ask(k) {
		return
	}
	p.asks.mu.Lock()
	p.asks.asked++
	p.asks.mu.Unlock()
	p.cfg.Peers.Find(k.Protocol(), k.Src(), k.Dst(), func(_, text string, ok bool) {
		if !ok {
			return
		}
		defer p.readers.leave(p.readers.enter()) // c has the number of a service
		service, c, err := parseCourse(text)
		if err == nil && c.fate == routes {
			c.service, err = p.snap.Load().routing(service)
		}
		if err != nil {
			p.cfg.Logger.Debug("fragments of the cluster", "flow", k, "err", err)
			return
		}
		if _, known := p.sessions().Peek(c.session); known || c.fate != follows {
			p.settle(k, c, link)
			return
		}
		s := c.session
		p.cfg.Peers.Find(s.Protocol(), s.Src(), s.Dst(), func(node, text string, ok bool) {
			if _, owned := p.owner(node, text); !ok || owned {
				return
			}
			if err := p.adoptSafely(s, node, text); err != nil {
				p.cfg.Logger.Debug("a flow of the cluster", "flow", s, "node", node, "err", err)
			} else {
				p.asks.mu.Lock()
				p.asks.adopted++
				p.asks.mu.Unlock()
			}
			p.settle(k, c, link)
		})
	})
}

// routing returns the number of a service that routes on.
func (s *snapshot) routing(name string) (no uint32, err error) {
	for svc := range s.named() {
		if svc.live && svc.conf.Name == name && svc.conf.Forward == Route {
			return svc.no, nil
		}
	}
	return 0, fmt.Errorf("service %q routes nothing here", name)
}

// settle has the fragments that wait for their first one follow a session. If that is not here, they are dropped.
func (p *Plane) settle(k clienttable.Flow, c course, link Link) {
	waiting := p.fragments.settle(k, c)
	if len(waiting) == 0 {
		return
	}
	q := &p.asks
	q.mu.Lock()
	q.loose = append(q.loose, loose{waiting, c, link})
	q.some.Store(true)
	q.mu.Unlock()
	p.pending.rouse()
}

// takeLoose returns the fragments of workers with a link whose course is known now.
func (q *asks) takeLoose(link Link) (out []loose) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.loose = slices.DeleteFunc(q.loose, func(l loose) bool {
		if l.link == link {
			out = append(out, l)
		}
		return l.link == link
	})
	q.some.Store(len(q.ready)+len(q.loose) > 0)
	return out
}

// each calls f with what becomes of every packet that a service routes.
func (q *asks) each(f func(c *course)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.loose {
		if c := &q.loose[i].course; c.fate == routes {
			f(c)
		}
	}
}

// tell reports whether a packet's course is to be announced: once, and not if all of it has come.
func (f *fragments) tell(k clienttable.Flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.m[k]
	if d == nil || d.told || f.told >= maxTold {
		return false
	}
	d.told = true
	f.told++
	return true
}

// ask reports whether the peers are to be asked about a packet.
func (f *fragments) ask(k clienttable.Flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.m[k]
	if d == nil || d.known || d.asked {
		return false
	}
	d.asked = true
	return true
}

// settle says what the fragments of a packet follow, and returns those that waited for the first one.
func (f *fragments) settle(k clienttable.Flow, c course) (waiting [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.m[k]
	if d == nil || d.known {
		return nil
	}
	d.known, d.course = true, c
	waiting, d.waiting = d.waiting, nil
	for _, b := range waiting {
		f.held -= len(b)
	}
	return waiting
}

// takeOver returns the packets that were announced and are forgotten.
func (f *fragments) takeOver() (over []clienttable.Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	over, f.over, f.told = f.over, nil, 0
	return over
}
