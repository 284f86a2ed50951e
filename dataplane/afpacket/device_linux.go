package afpacket

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/gso"
	"github.com/lbprim/lbprim/internal/spin"
)

const (
	virtioLen = 10 // struct virtio_net_hdr
	portRoom  = 16 // the interface index lies this far before the packet
)

// Device is a set of packet sockets, one per interface: one queue of those interfaces. Use [Open] or
// [OpenQueues]. It must not be copied.
type Device struct {
	cfg     Config
	group   *group
	ports   []*port // in the order of Config.Interfaces
	byIndex atomic.Pointer[map[uint32]*port]
	wake    int // an eventfd that Close writes to
	closed  atomic.Bool
	once    sync.Once
	busy    sync.WaitGroup // callers inside the kernel, so that Close frees descriptors last
	gate    sync.RWMutex

	next   int    // the port Read looks at first
	reads  uint32 // that found something
	spin   spin.Spinner
	polls  []unix.PollFd
	polled []*port // those of polls but the first
	stats  counters
	out    batch        // Write's headers
	super  gso.Splitter // of a super-packet that the kernel refused
	room   []byte       // for one of its packets
}

// group is what the queues of the same interfaces share.
type group struct {
	vips atomic.Pointer[vipSet]

	mu     sync.Mutex // guards what follows, and what ports do when VIPs change or their interface returns
	queues []*Device
	fanout map[string]fanout // by interface; only with several queues
}

type counters struct {
	received, sent, otherHost, truncated, kernelDrop atomic.Uint64
	sendFailed, queueFull, refused, down, answered   atomic.Uint64
	split, sleeps                                    atomic.Uint64
	_                                                [64]byte
}

// Open opens the interfaces. It needs CAP_NET_RAW. See [Preflight] for what else the host needs.
func Open(cfg *Config) (*Device, error) {
	queues, err := OpenQueues(cfg, 1)
	if err != nil {
		return nil, err
	}
	return queues[0], nil
}

// OpenQueues opens the interfaces n times; the kernel gives every frame to one of the queues. Frames of one client's endpoint
// come by one queue in both directions: those to a VIP are chosen by their source, all others by their
// destination, which is the client where a server answers. Fragments and protocols without ports go by the address
// alone, and what is no IP packet to the first queue.
//
// All queues answer for the same VIPs: SetVIPs of one is SetVIPs of all. With several queues there may be [MostFanoutVIPs], and
// some kernels want the interfaces to be up when they are opened. Closing a queue gives its share to the others.
func OpenQueues(cfg *Config, n int) (queues []*Device, err error) {
	c, err := cfg.complete(n)
	if err != nil {
		return nil, err
	}
	g := &group{}
	if n > 1 {
		g.fanout = map[string]fanout{}
	}
	for range n {
		d, err := g.open(&c)
		if err != nil {
			for _, q := range queues {
				q.Close()
			}
			return nil, err
		}
		queues = append(queues, d)
	}
	g.mu.Lock()
	g.queues = queues
	g.mu.Unlock()
	return append([]*Device(nil), queues...), nil
}

// open opens one more queue.
func (g *group) open(c *Config) (*Device, error) {
	d := &Device{cfg: *c, group: g, wake: -1, spin: spin.New(c.Spin)}
	var err error
	if d.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("afpacket: eventfd: %w", err)
	}
	var faults []error
	for _, name := range c.Interfaces {
		p := &port{name: name, fd: -1, in: newBatch(c.BatchSize)}
		d.ports = append(d.ports, p)
		if err := p.open(c, g); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		d.Close()
		return nil, errors.Join(faults...)
	}
	d.index()
	d.out = newBatch(c.BatchSize)
	return d, nil
}

// index rebuilds the map from interface index to port; an interface that was removed and
// came back has a new index.
func (d *Device) index() {
	m := make(map[uint32]*port, len(d.ports))
	for _, p := range d.ports {
		m[p.index.Load()] = p
	}
	d.byIndex.Store(&m)
}

// BatchSize is Config.BatchSize.
func (d *Device) BatchSize() int { return d.cfg.BatchSize }

// VirtioHeader is 10: frames carry a virtio-net header in front.
func (d *Device) VirtioHeader() int { return virtioLen }

// Ethernet is true: packets begin with an Ethernet header.
func (d *Device) Ethernet() bool { return true }

// Ports is true: frames carry the index of their interface.
func (d *Device) Ports() bool { return true }

// Interfaces returns the interfaces in the order of Config.
func (d *Device) Interfaces() []Interface {
	all := make([]Interface, len(d.ports))
	for i, p := range d.ports {
		all[i] = Interface{Name: p.name, MAC: *p.mac.Load()}
		if !p.gone.Load() {
			all[i].Index = p.index.Load()
		}
	}
	return all
}

// Stats returns the counts so far.
func (d *Device) Stats() Stats {
	if d.enter() { // else a descriptor may be somebody else's by now
		for _, p := range d.ports {
			p.countDrops(&d.stats)
		}
		d.busy.Done()
	}
	c := &d.stats
	return Stats{
		Received: c.received.Load(), Sent: c.sent.Load(), OtherHost: c.otherHost.Load(), Truncated: c.truncated.Load(),
		KernelDrop: c.kernelDrop.Load(), SendFailed: c.sendFailed.Load(), QueueFull: c.queueFull.Load(), Refused: c.refused.Load(),
		Down: c.down.Load(), Answered: c.answered.Load(), Split: c.split.Load(), Sleeps: c.sleeps.Load(),
	}
}

// enter keeps the descriptors open until leave, or says that the device is closed.
func (d *Device) enter() bool {
	d.gate.RLock()
	defer d.gate.RUnlock()
	if d.closed.Load() {
		return false
	}
	d.busy.Add(1)
	return true
}

// Close wakes a waiting Read and closes the sockets.
func (d *Device) Close() error {
	d.once.Do(func() {
		d.gate.Lock()
		d.closed.Store(true)
		d.gate.Unlock()
		if d.wake >= 0 {
			one := [8]byte{7: 1, 0: 1}
			_, _ = unix.Write(d.wake, one[:])
		}
		d.busy.Wait()
		for _, p := range d.ports {
			p.countDrops(&d.stats)
			p.close()
		}
		if d.wake >= 0 {
			unix.Close(d.wake)
		}
	})
	return nil
}

// SetVIPs makes the device answer ARP and Neighbor Discovery for these addresses, and for no others,
// on all its interfaces, and announces those that are new. It is the same for all queues.
func (d *Device) SetVIPs(vips ...netip.Addr) error {
	set, err := newVIPSet(vips)
	if err != nil {
		return err
	}
	if !d.enter() {
		return fmt.Errorf("afpacket: set VIPs: %w", os.ErrClosed)
	}
	defer d.busy.Done()
	g := d.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(set.v4) + len(set.v6); g.fanout != nil && n > MostFanoutVIPs {
		return fmt.Errorf("afpacket: set VIPs: %d addresses: want at most %d with several queues", n, MostFanoutVIPs)
	}
	old := g.vips.Swap(set)
	var faults []error
	for _, q := range g.queues {
		if q != d && !q.enter() {
			continue
		}
		for _, p := range q.ports {
			faults = append(faults, p.follow(set, g.fanout != nil))
		}
		if q != d {
			q.busy.Done()
		}
	}
	fresh := set.without(old)
	for _, p := range d.ports {
		announce(p, fresh)
	}
	return errors.Join(faults...)
}
