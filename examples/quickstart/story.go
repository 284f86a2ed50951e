package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// sabotage has tests break the story, to see that it notices. The zero value breaks nothing.
type sabotage struct {
	weights   bool // the weights of the balancer are not those announced
	immortal  bool // the server that should die does not
	lazarus   bool // the server that should return does not
	undrained bool // the drain is announced, but not made
	cut       bool // the drained server is stopped instead
	forgetful bool // clients of the shop are not remembered
	lying     bool // one server's pages are wrong now and then
	masked    bool // one echo server gives its name as the other's
	slower    int  // clients ask so much slower: no lie, but less work for a test
}

// story is what is shown: the network, the servers, the balancer, the clients, and what happens.
type story struct {
	opt  options
	mode string // first line
	lab  *lab.Lab
	show display
	sabotage

	members   []member
	processes map[string]*process
	b         *balancer
	c         *clients
	ledger    ledger
	start     time.Time

	mu          sync.Mutex
	phase       string
	weighed     time.Time         // since when the weights in force are
	transitions map[string]int    // by member
	down        map[string][]bool // members and what was last told of their families
	moved       chan struct{}     // closed and replaced at every transition
	h           history
	lastPackets uint64
	largest     tables
	lastFrame   time.Time
}

const (
	victim  = "web2"
	drained = "web3"
	streams = 12 // connections open while a server is drained
)

// run tells the whole story and returns what was found. The error is for what kept it from being told.
func (s *story) run(ctx context.Context) (*report, error) {
	s.transitions, s.down, s.moved = map[string]int{}, map[string][]bool{}, make(chan struct{})
	s.h = history{victim: victim, drained: drained, streams: streams}
	s.members = []member{
		{web, "web1", 0, 1, steering.Enabled}, {web, victim, 1, 2, steering.Enabled}, {web, drained, 2, 3, steering.Enabled},
		{shop, "shop1", 3, 1, steering.Enabled}, {shop, "shop2", 4, 1, steering.Enabled},
		{echo, "echo1", 5, 1, steering.Enabled}, {echo, "echo2", 6, 1, steering.Enabled},
	}
	s.start = time.Now()

	trust, err := s.startServers(ctx)
	defer func() {
		for _, p := range s.processes {
			p.kill()
		}
	}()
	if err != nil {
		return nil, err
	}
	if s.b, err = newBalancer(s.lab, s.members, s.opt, s.forgetful, s.transition); err != nil {
		return nil, err
	}
	s.c = &clients{host: s.lab.Client, vip: vipOf, trust: trust, ledger: &s.ledger, seed: s.opt.seed, slower: s.slower}

	// Everything that runs beside the story, and ends with it: first the clients, then what they need.
	balancing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.b.run(balancing) }()
	asking, hush := context.WithCancel(ctx)
	defer hush()
	var wg sync.WaitGroup
	defer func() { hush(); wg.Wait() }()

	s.say("3 web, 2 HTTPS and 2 UDP echo servers run; health checks begin")
	if !s.until(ctx, 5*time.Second, func() bool { return s.allUp() }) {
		return nil, s.unready(ctx)
	}
	s.say("every server is found healthy; clients begin")
	wg.Go(func() { s.c.run(asking) })
	drawing, rest := context.WithCancel(ctx)
	defer rest()
	var drawn sync.WaitGroup
	drawn.Go(func() { s.draw(drawing) })

	told := s.tell(ctx, asking)
	hush()
	wg.Wait()
	r := s.report()
	rest()
	drawn.Wait()
	s.show.close()
	stop()
	if err := <-ended; err != nil {
		return nil, err
	}
	return r, told
}

func (s *story) startServers(ctx context.Context) (trust *tls.Config, err error) {
	serverTLS, trust, err := certificate()
	if err != nil {
		return nil, err
	}
	s.processes = map[string]*process{}
	for _, m := range s.members {
		p := &process{name: m.name, host: s.lab.Servers[m.host]}
		for _, v6 := range []bool{false, true} {
			p.at = append(p.at, netip.AddrPortFrom(lab.ServerAddr(v6, m.host), port(m.service)))
		}
		if m.service != echo {
			p.handler = answer(m.name)
		}
		if m.service == shop {
			p.tls = serverTLS
		}
		s.break1(p)
		if err := p.start(ctx); err != nil {
			return nil, fmt.Errorf("start %s: %w", m.name, err)
		}
		s.processes[m.name] = p
	}
	return trust, nil
}

// tell makes things happen. The parts' lengths are shares of the duration.
func (s *story) tell(ctx, asking context.Context) error {
	begin, planned := time.Now(), 0.0
	// at is when a part ends: at that share of the whole, but where something took longer than it should, on a slow
	// machine, not before half of the part's length is over.
	at := func(share float64) time.Time {
		length := time.Duration((share - planned) * float64(s.opt.duration))
		planned = share
		end := begin.Add(time.Duration(share * float64(s.opt.duration)))
		if least := time.Now().Add(length / 2); end.Before(least) {
			end = least
		}
		return end
	}

	s.chapter("1/5 shares by weight 1:2:3")
	s.h.weights1 = map[string]int{"web1": 1, victim: 2, drained: 3}
	if s.weights {
		if err := s.configure(map[string]int{"web1": 3, victim: 2, drained: 1}, nil); err != nil {
			return err
		}
	}
	s.h.shares1.from = s.weigh()
	if !s.pass(ctx, at(0.25)) || !s.counted(ctx, s.h.shares1) {
		return ctx.Err()
	}
	s.h.shares1.to = time.Now()

	s.chapter("2/5 a server dies, and returns")
	s.h.killed = time.Now()
	s.say(victim + " is killed: connections reset, nobody listens")
	if !s.immortal {
		s.processes[victim].kill()
	}
	if s.until(ctx, 2*noticeable, func() bool { return s.told(victim, false) }) {
		s.h.markedDown = time.Now()
		s.say(fmt.Sprintf("%s is marked down after %.2fs: connections go to the others", victim, s.h.markedDown.Sub(s.h.killed).Seconds()))
	}
	if !s.pass(ctx, at(0.42)) {
		return ctx.Err()
	}
	s.h.restarted = time.Now()
	s.say(victim + " is started again")
	if !s.lazarus && !s.immortal {
		if err := s.processes[victim].start(ctx); err != nil {
			return fmt.Errorf("start %s again: %w", victim, err)
		}
	}
	if s.until(ctx, 2*noticeable, func() bool { return s.told(victim, true) }) {
		s.h.markedUp = time.Now()
		s.say(fmt.Sprintf("%s is healthy again after %.2fs, and gets its share", victim, s.h.markedUp.Sub(s.h.restarted).Seconds()))
	}
	s.weigh()
	if !s.pass(ctx, at(0.52)) {
		return ctx.Err()
	}

	s.chapter("3/5 a server is drained")
	s.say(fmt.Sprintf("%d clients open connections that stay open", streams))
	streaming, end := context.WithCancel(asking)
	defer end()
	var open sync.WaitGroup
	defer func() { end(); open.Wait() }()
	for i := range streams {
		open.Go(func() { s.c.stream(streaming, i+1) })
	}
	s.until(ctx, patience, func() bool { return s.streaming() == streams })
	if !s.pass(ctx, at(0.57)) {
		return ctx.Err()
	}
	if !s.undrained {
		if err := s.configure(nil, map[string]steering.AdminState{drained: steering.Draining}); err != nil {
			return err
		}
	}
	s.h.drain.from = s.weigh()
	if s.cut {
		s.processes[drained].kill()
	}
	s.say(drained + " is drained: it keeps its connections and gets no new one")
	if !s.pass(ctx, at(0.72)) {
		return ctx.Err()
	}
	end()
	open.Wait()
	if s.until(ctx, noticeable, func() bool { return s.member(drained).open == 0 }) {
		s.say("the last connection to " + drained + " has ended: it can be switched off")
	}
	s.h.drain.to = time.Now()

	s.chapter("4/5 weights change to 3:2:1")
	s.h.weights2 = map[string]int{"web1": 3, victim: 2, drained: 1}
	if err := s.configure(s.h.weights2, map[string]steering.AdminState{drained: steering.Enabled}); err != nil {
		return err
	}
	s.h.shares2.from = s.weigh()
	s.say(drained + " is back, and the weights are 3:2:1 now")
	if !s.pass(ctx, at(0.98)) || !s.counted(ctx, s.h.shares2) {
		return ctx.Err()
	}
	s.h.shares2.to = time.Now()
	s.chapter("5/5 verification")
	s.pass(ctx, at(1))
	return ctx.Err()
}

// configure changes weights and states of web servers, where given.
func (s *story) configure(weights map[string]int, admin map[string]steering.AdminState) error {
	s.mu.Lock()
	for i := range s.members {
		m := &s.members[i]
		if w, ok := weights[m.name]; ok {
			m.weight = w
		}
		if a, ok := admin[m.name]; ok {
			m.admin = a
		}
	}
	members := slices.Clone(s.members)
	s.mu.Unlock()
	return s.b.configure(web, members)
}

// weigh begins a new count of shares.
func (s *story) weigh() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weighed = time.Now()
	return s.weighed
}

func (s *story) chapter(phase string) {
	s.mu.Lock()
	s.phase = phase
	s.mu.Unlock()
}

// say and frame are called from several goroutines; the display sees one at a time.
func (s *story) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.show.event(time.Since(s.start), text)
}

// pass lets time go by, and reports whether nobody has interrupted.
func (s *story) pass(ctx context.Context, until time.Time) bool {
	sleep(ctx, time.Until(until))
	return ctx.Err() == nil
}

// counted waits for enough connections to judge shares by, which a slow machine takes longer for. It
// reports whether nobody has interrupted.
func (s *story) counted(ctx context.Context, when span) bool {
	s.until(ctx, 2*noticeable, func() bool {
		total := 0
		for _, n := range tally(s.ledger.all(), func(r request) bool { return r.service == web && r.stream == 0 && when.holds(r) }) {
			total += n
		}
		return total >= 3*fewest
	})
	return ctx.Err() == nil
}

// streaming counts the open connections that have carried an answer.
func (s *story) streaming() int {
	seen := map[int]bool{}
	for _, r := range s.ledger.all() {
		if r.stream != 0 && r.err == nil {
			seen[r.stream] = true
		}
	}
	return len(seen)
}

// until waits for something that health checks or clients bring about.
func (s *story) until(ctx context.Context, atMost time.Duration, happened func() bool) bool {
	limit, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for !happened() {
		if limit.Err() != nil {
			return false
		}
		s.mu.Lock()
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
		case <-limit.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// transition is told of every change of a node's health, after the balancer.
func (s *story) transition(t healthcheck.Transition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := memberName(t.Check.ID)
	s.transitions[name]++
	if s.down[name] == nil {
		s.down[name] = []bool{true, true}
	}
	for i, v6 := range []bool{false, true} {
		if t.Check.ID == nodeName(name, v6) {
			s.down[name][i] = !t.To.Usable()
		}
	}
	close(s.moved)
	s.moved = make(chan struct{})
}

// told reports whether both families of a member were last told to be up, or down.
func (s *story) told(name string, up bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.down[name]
	return d != nil && d[0] == !up && d[1] == !up
}

func (s *story) allUp() bool {
	return !slices.ContainsFunc(s.members, func(m member) bool { return !s.told(m.name, true) })
}

func (s *story) member(name string) status {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		if m.name == name {
			return s.b.status(m)
		}
	}
	return status{}
}

// unready says which servers the health checks did not find, and why.
func (s *story) unready(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var sick []string
	for id, st := range maps.Collect(s.b.monitor.All()) {
		if !st.State.Usable() {
			sick = append(sick, fmt.Sprintf("%s (%v: %s %v)", id, st.State, st.Note, st.Err))
		}
	}
	slices.Sort(sick)
	return fmt.Errorf("health checks do not find %v", sick)
}
