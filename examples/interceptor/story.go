package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/steering/intercept"
)

// kind is a kind of traffic; each meets another rule.
type kind uint8

const (
	web kind = iota
	dns
	ssh
	ntp
	telnet
	kinds
)

var kindNames = [kinds]string{"web", "dns", "ssh", "ntp", "telnet"}

var kindPorts = [kinds]uint16{80, 53, 22, 123, 23}

// flow is a conversation of a host of the LAN.
type flow struct {
	kind     kind
	v6       bool
	link     int // by which it leaves
	born     int // phase
	src, dst netip.AddrPort
	said     uint32
	failed   error
	refused  bool
}

func (f *flow) String() string {
	return fmt.Sprintf("%s %v to %v over link %d", kindNames[f.kind], f.src, f.dst, f.link)
}

// phase is one act of the story.
type phase struct {
	title  string
	change func(context.Context, *site) error
	state  intercept.ClusterState
	// What is down.
	balancers [balancers]bool
	gateways  [gateways]bool
}

const phases = 8

// acts are all that happens.
func acts() [phases]phase {
	crash := func(numbers ...int) func(context.Context, *site) error {
		return func(_ context.Context, s *site) error {
			for _, i := range numbers {
				s.members[i].crash()
			}
			return nil
		}
	}
	gateways := func(up ...bool) func(context.Context, *site) error {
		return func(_ context.Context, s *site) error {
			for i, on := range up {
				s.up[i].Store(on)
			}
			return nil
		}
	}
	return [phases]phase{
		{title: "all four balancers are up"},
		{title: "b1 crashes; its partner b2 goes on", change: crash(0), state: intercept.SerialPartnerDown, balancers: [4]bool{true}},
		{title: "b2 crashes too; the link east is a cable now", change: crash(1), state: intercept.PairDown, balancers: [4]bool{true, true}},
		{title: "both are back", change: func(ctx context.Context, s *site) error {
			return errors.Join(s.members[0].start(ctx), s.members[1].start(ctx))
		}},
		{title: "b3 crashes; its partner b4 goes on", change: crash(2), state: intercept.SerialPartnerDown, balancers: [4]bool{2: true}},
		{title: "b3 is back, and the uplink mpls fails", change: func(ctx context.Context, s *site) error {
			s.up[0].Store(false)
			return s.members[2].start(ctx)
		}, gateways: [2]bool{true}},
		{title: "the uplink internet fails too", change: gateways(false, false), gateways: [2]bool{true, true}},
		{title: "both uplinks are back", change: gateways(true, true)},
	}
}

// options of a run.
type options struct {
	loopback    bool          // hosts are addresses of the machine itself
	lonely      bool          // balancers share no flows
	packets     int           // of each flow in each phase
	every       time.Duration // least length of an act
	firstAnswer time.Duration // of a flow
	// probeTimeout is for how long a probe of a path is waited for: three in a row take its uplink out.
	probeTimeout time.Duration
	patience     time.Duration // for everything
}

// story is the site, what is done to it, and what is shown of it.
type story struct {
	*site
	opt   options
	begun time.Time
	chat  *chatter

	mu      sync.Mutex
	show    display
	act     int // counted from 1
	current phase
	waiting string // for what balancers do not know yet
}

// tell plays the story, and returns what was found of it.
func tell(ctx context.Context, o options, show display) (r *report, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &story{site: &site{ledger: newLedger(), probeTimeout: o.probeTimeout}, opt: o, show: show, begun: time.Now()}
	var close func() error
	if o.loopback {
		s.hosts, close = lab.Loopback(hosts), func() error { return nil }
	} else if s.hosts, close, err = lab.Star(hosts); err != nil {
		cancel()
		return nil, err
	}
	defer func() {
		cancel()
		s.wg.Wait()
		err = errors.Join(err, close())
	}()
	for i := range s.members {
		s.members[i] = &member{site: s.site, number: i, host: s.hosts[i], lonely: o.lonely}
	}
	if err := s.start(ctx, o.firstAnswer); err != nil {
		return nil, err
	}
	lan, err := s.outlet(ctx, hostLAN)
	if err != nil {
		return nil, err
	}
	defer lan.Close()
	s.chat = &chatter{site: s.site, lan: lan, opt: o}
	for _, m := range s.members {
		if err := m.start(ctx); err != nil {
			return nil, err
		}
		defer func() {
			if m.alive.Load() {
				m.crash()
			}
		}()
	}
	return s.play(ctx, lan)
}

// play plays all acts.
func (s *story) play(ctx context.Context, lan outlet) (*report, error) {
	beside, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	wg.Go(func() { s.draw(beside) })
	var talking sync.WaitGroup
	talked, hush := context.WithCancel(ctx)
	defer talking.Wait()
	defer hush()
	var flows []*flow
	for i, p := range acts() {
		s.mu.Lock()
		s.act, s.current = i+1, p
		s.mu.Unlock()
		s.say(fmt.Sprintf("%d. %s", i+1, p.title))
		begun := time.Now()
		if p.change != nil {
			if err := p.change(ctx, s.site); err != nil {
				return nil, err
			}
		}
		if err := s.settle(ctx, p); err != nil {
			return nil, err
		}
		s.say(fmt.Sprintf("   every balancer knows after %v", time.Since(begun).Round(100*time.Millisecond)))
		s.ledger.begin(i)
		s.chat.act.Store(int64(i))
		if i == 0 {
			talking.Go(func() { s.chat.run(talked) })
		}
		flows = append(flows, newFlows(i)...)
		s.talk(ctx, lan, flows, s.opt)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(begun.Add(s.opt.every))):
		}
		s.over()
	}
	hush()
	talking.Wait()
	return verify(s.ledger, flows, s.chat), nil
}

// say and frame are for several goroutines; the display sees one at a time.
func (s *story) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.show.event(time.Since(s.begun), text)
}

// draw shows how things stand, a few times a second.
func (s *story) draw(ctx context.Context) {
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.mu.Lock()
			s.show.frame(s.frame())
			s.mu.Unlock()
		}
	}
}

// over shows how things stand at the end of an act.
func (s *story) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.frame()
	f.Over = true
	s.show.frame(f)
}

// frame is how things stand. s.mu is held.
func (s *story) frame() *frame {
	f := &frame{Seconds: time.Since(s.begun).Seconds(), Act: s.act, Title: s.current.title, Waiting: s.waiting}
	for i, m := range s.members {
		r := balancerRow{
			Name: balancerName(i), Link: links[i/2], State: "down", Redirected: m.redirected.Load(), Bypassed: m.bypassed.Load(),
			Relayed: m.relayed.Load(), Denied: m.denied.Load(), Learned: m.learned.Load(),
		}
		if m.alive.Load() {
			r.State = intercept.ClusterState(m.state.Load()).String()
		}
		f.Balancers = append(f.Balancers, r)
	}
	for i := range nodes {
		f.Nodes = append(f.Nodes, counter{Name: nodeName(i)})
	}
	for i, name := range uplinks {
		f.Ways = append(f.Ways, counter{Name: name, Down: !s.up[i].Load()})
	}
	f.Ways = append(f.Ways, counter{Name: wayBalancer}, counter{Name: wayCable})
	s.ledger.sums(f.Nodes, f.Ways)
	answered, longest := s.chat.status()
	f.Answered, f.Longest = answered, longest.Seconds()
	return f
}

// newFlows are flows of every kind, in both families and over both links.
func newFlows(phase int) (flows []*flow) {
	for k := range kinds {
		for n := range 8 {
			f := &flow{kind: k, v6: n&1 != 0, link: n >> 1 & 1, born: phase}
			port := uint16(20000 + 1000*phase + 10*int(k) + n)
			if f.v6 {
				f.src = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", n+1)), port)
				f.dst = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:2::80"), kindPorts[k])
			} else {
				f.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n + 1)}), port)
				f.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 80}), kindPorts[k])
			}
			flows = append(flows, f)
		}
	}
	return flows
}

// talk has all flows say some more, all at the same time.
func (s *site) talk(ctx context.Context, lan outlet, flows []*flow, o options) {
	var wg sync.WaitGroup
	for _, f := range flows {
		wg.Go(func() {
			for range o.packets {
				if f.failed != nil || f.refused {
					return
				}
				f.failed = s.say(ctx, lan, f, o)
			}
		})
	}
	wg.Wait()
}

// packet is what was said last on the flow.
func (f *flow) packet() packet {
	p := packet{src: f.src, dst: f.dst, tcp: f.kind != dns && f.kind != ntp, seq: f.said}
	p.syn = p.tcp && f.said == 1
	return p
}

// say sends one packet, again and again as TCP would, until it is answered.
func (s *site) say(ctx context.Context, lan outlet, f *flow, o options) error {
	f.said++
	p := f.packet()
	b, err := p.bytes()
	if err != nil {
		return err
	}
	answers := s.ledger.wait(flowOf(p))
	end := time.After(o.patience)
	for {
		s.cross(lan, f.link, intercept.LAN, b)
		again := time.After(time.Second + o.firstAnswer)
		for waiting := true; waiting; {
			select {
			case a := <-answers:
				if a.seq == f.said {
					f.refused = a.refused
					return nil
				}
			case <-again:
				waiting = false
			case <-end:
				return fmt.Errorf("packet %d was not answered within %v", f.said, o.patience)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// settle waits until all balancers that are up know what is down.
func (s *story) settle(ctx context.Context, p phase) error {
	end := time.Now().Add(s.opt.patience)
	for {
		why := s.unsettled(p)
		s.mu.Lock()
		s.waiting = why
		s.mu.Unlock()
		if why == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not settled after %v: %s", p.title, s.opt.patience, why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *site) unsettled(p phase) string {
	up, known := 0, map[int]bool{}
	for i := range s.members {
		if !p.balancers[i] {
			up++
		}
	}
	for i, m := range s.members {
		if p.balancers[i] {
			continue
		}
		if n := len(m.cluster.Members()); n != up {
			return fmt.Sprintf("%s knows %d members", balancerName(i), n)
		}
		if st := m.cluster.State(); st != p.state {
			return fmt.Sprintf("%s is %v", balancerName(i), st)
		}
		known[m.cluster.Stats().Flows.Flows] = true
		for _, c := range m.path.Channels() {
			down := false
			for j := range balancers {
				down = down || c.Balancer == balancerName(j) && p.balancers[j]
			}
			for j := range gateways {
				down = down || c.Uplink == uplinks[j] && p.gateways[j]
			}
			if c.Up == down {
				return fmt.Sprintf("%s takes the channel of %s over %s for up: %v", balancerName(i), c.Uplink, c.Balancer, c.Up)
			}
		}
	}
	if len(known) > 1 {
		return "flows are still being shared"
	}
	return ""
}
