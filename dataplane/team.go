package dataplane

import (
	"fmt"
	"sync"
	"time"
)

// maxWorkers bounds the workers of [Plane.SetWorkers].
const maxWorkers = 256

// SetWorkers changes how many workers handle packets, see Config.Workers, while Run is at work or before. Sessions
// stay as they are, since all workers share them; packets that are under way are handled in order.
func (p *Plane) SetWorkers(n int) error {
	if n < 0 || n > maxWorkers {
		return invalid("workers", n, fmt.Sprintf("0 to %d", maxWorkers))
	}
	p.teams.mu.Lock()
	defer p.teams.mu.Unlock()
	p.setWorkers(n)
	return nil
}

// Workers returns what SetWorkers, or Config.Workers, has set.
func (p *Plane) Workers() int {
	p.teams.mu.Lock()
	defer p.teams.mu.Unlock()
	return p.teams.n
}

// teams has the workers that packets are handed to.
type teams struct {
	mu      sync.Mutex
	n       int
	running bool
	hands   []*hand // that there ever were: a smaller team leaves some idle
	wg      sync.WaitGroup
}

// hand is a worker that gets its packets from others. Two teams may share it while one takes over from the other.
type hand struct {
	no   int
	w    *Worker
	busy sync.Mutex // from handling a batch until its packets are written
}

// team is a number of workers. Readers join it and leave it between batches; once it has been
// replaced and the last one has left, it ends.
type team struct {
	in []chan *parcel // by worker

	mu      sync.Mutex
	users   int
	retired bool
}

// parcel is packets of one reader for one worker. Its buffers are lent, and return with it.
type parcel struct {
	q     *queue
	bufs  [][]byte
	sizes []int
}

func (p *Plane) setWorkers(n int) {
	t := &p.teams
	t.n = n
	spreadOver := n
	if n == 0 {
		spreadOver = len(p.cfg.Devices)
	}
	p.spreadOver.Store(uint32(spreadOver))
	if !t.running {
		return
	}
	var next *team
	if n > 0 {
		for len(t.hands) < n {
			w := p.newWorker(Link{}, fmt.Sprint("worker ", len(t.hands)))
			t.hands = append(t.hands, &hand{no: len(t.hands), w: w})
		}
		next = &team{in: make([]chan *parcel, n)}
		for i := range next.in {
			in := make(chan *parcel, len(p.cfg.Devices)*maxParcels(n))
			next.in[i] = in
			h := t.hands[i]
			t.wg.Go(func() { h.run(in) })
		}
	}
	if old := p.team.Swap(next); old != nil {
		old.retire()
	}
}

// startTeam has the workers start that are set so far; stopTeam, after all readers are gone, ends them.
func (p *Plane) startTeam() {
	p.teams.mu.Lock()
	defer p.teams.mu.Unlock()
	p.teams.running = true
	p.setWorkers(p.teams.n)
}

func (p *Plane) stopTeam() {
	p.teams.mu.Lock()
	p.teams.running = false
	if old := p.team.Swap(nil); old != nil {
		old.retire()
	}
	p.teams.mu.Unlock()
	p.teams.wg.Wait()
}

// join reports whether the team takes packets yet.
func (t *team) join() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retired {
		return false
	}
	t.users++
	return true
}

func (t *team) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users--
	t.end()
}

func (t *team) retire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retired = true
	t.end()
}

func (t *team) end() {
	if t.retired && t.users == 0 {
		for _, in := range t.in {
			close(in)
		}
	}
}

// run handles parcels until there will be no more.
func (h *hand) run(in chan *parcel) {
	for pc := range in {
		h.busy.Lock()
		q := pc.q
		h.w.setLink(q.w.link)
		out := h.w.Process(time.Now(), pc.bufs, pc.sizes, ReadOffset, nil)
		if len(out) > 0 {
			to := q.peers[h.no%len(q.peers)]
			to.write.Lock()
			_ = h.w.write(to.d, out) // its reader reports a device that is closed
			to.write.Unlock()
		}
		h.busy.Unlock()
		q.back <- pc
	}
}

// maxParcels is how many parcels a reader may have under way with n workers.
func maxParcels(n int) int { return 4*n + 4 }

// sorter is the part of a reader that hands packets over.
type sorter struct {
	q       *queue
	team    *team // joined, or nil
	stock   [][]byte
	spare   []*parcel
	away    int       // parcels under way
	parcels int       // made
	open    []*parcel // by worker, of the batch under way
}

// follow joins the team in force, after every packet that the former one got is done with: so packets stay in order. It
// returns nil where the reader is to handle packets itself.
func (s *sorter) follow(p *Plane) *team {
	for {
		t := p.team.Load()
		if t == s.team {
			return t
		}
		s.quit()
		if t == nil || t.join() {
			s.team = t
		}
	}
}

// quit leaves the team.
func (s *sorter) quit() {
	for s.away > 0 {
		s.take(<-s.q.back)
	}
	if s.team != nil {
		s.team.leave()
		s.team = nil
	}
}

// take has a parcel back.
func (s *sorter) take(pc *parcel) {
	s.away--
	s.stock = append(s.stock, pc.bufs...)
	pc.bufs, pc.sizes = pc.bufs[:0], pc.sizes[:0]
	s.spare = append(s.spare, pc)
}

// hand gives the packets in bufs to the workers of t, and other buffers to bufs.
func (s *sorter) hand(p *Plane, t *team, bufs [][]byte, sizes []int) {
	n := uint32(len(t.in))
	if len(s.open) < len(t.in) {
		s.open = make([]*parcel, len(t.in))
	}
	// Have enough in hand for the whole batch, even if each packet is for another worker.
	for len(s.stock) < len(bufs) || len(s.spare) < len(t.in) {
		if made := maxParcels(len(t.in)); s.parcels < made && len(s.spare) < len(t.in) {
			s.parcels++
			s.spare = append(s.spare, new(parcel))
			continue
		}
		if s.away == 0 {
			s.stock = append(s.stock, make([]byte, bufferSize))
			continue
		}
		select {
		case pc := <-s.q.back:
			s.take(pc)
			continue
		default:
		}
		if len(s.stock) < len(bufs) && s.q.lent < 4*s.q.batch {
			s.q.lent++
			s.stock = append(s.stock, make([]byte, bufferSize))
			continue
		}
		s.take(<-s.q.back) // the workers are behind: the device's own queue fills
	}
	snap := p.snap.Load()
	for i, b := range bufs {
		ip := b[ReadOffset : ReadOffset+sizes[i]]
		at := uint32(0)
		if s.q.w.link.Ethernet {
			at = etherSpread(snap, ip)
		} else {
			at = snap.spread(ip)
		}
		at %= n
		pc := s.open[at]
		if pc == nil {
			last := len(s.spare) - 1
			pc, s.spare = s.spare[last], s.spare[:last]
			pc.q = s.q
			s.open[at] = pc
		}
		pc.bufs, pc.sizes = append(pc.bufs, b), append(pc.sizes, sizes[i])
		last := len(s.stock) - 1
		bufs[i], s.stock = s.stock[last], s.stock[:last]
	}
	for i, pc := range s.open[:n] {
		if pc != nil {
			s.open[i] = nil
			s.away++
			t.in[i] <- pc
		}
	}
}
