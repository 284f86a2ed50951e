package lab

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lbprim/lbprim/dataplane/devtest"
)

// memory is the network of goroutines: what a host sends goes to the device if it is for a VIP
// or comes from a server, else to the host it is for.
type memory struct {
	vips    []netip.Addr
	hosts   map[netip.Addr]*memHost
	wire    *devtest.Device // the far end of the balancer's device
	corrupt atomic.Uint64
	running sync.WaitGroup
}

// headroom before a packet, as the device's other end may want it.
const headroom = 16

// Memory makes the network without the kernel's help.
func Memory(cfg Config) (*Lab, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	near, far, err := devtest.Pair(&devtest.Config{Seed: cfg.Seed})
	if err != nil {
		return nil, err
	}
	m := &memory{vips: cfg.VIPs, hosts: map[netip.Addr]*memHost{}, wire: far}
	rng := rand.New(rand.NewPCG(cfg.Seed, 0x6d656d6f7279))
	l := &Lab{Device: near, Corrupt: m.corrupt.Load}

	client := newMemHost(m, false, rng.Uint32())
	for i := range cfg.Clients {
		client.own(ClientAddr(false, i), ClientAddr(true, i))
	}
	balancer := newMemHost(m, false, rng.Uint32())
	for i := range cfg.Servers + 1 {
		balancer.own(balancerAddr(false, byte(i)), balancerAddr(true, byte(i)))
	}
	l.Client, l.Balancer = client, balancer
	all := []*memHost{client, balancer}
	for i := range cfg.Servers {
		s := newMemHost(m, true, rng.Uint32())
		s.own(ServerAddr(false, i), ServerAddr(true, i))
		l.Servers = append(l.Servers, s)
		all = append(all, s)
	}
	for _, h := range all {
		m.running.Go(h.run)
	}
	m.running.Go(m.receive)
	l.close = sync.OnceValue(func() error {
		err := near.Close()
		for _, h := range all {
			h.stop()
		}
		m.running.Wait()
		return err
	})
	return l, nil
}

// forward takes a packet from a host.
func (m *memory) forward(from *memHost, b []byte) {
	_, dst, ok := ends(b)
	if !ok {
		return
	}
	to := m.hosts[dst]
	// As on a real balancer, what is for itself does not come to the device.
	if slices.Contains(m.vips, dst) || from.diverted && (to == nil || !slices.Contains(to.addrs, dst) || !to.balancer()) {
		_, _ = m.wire.Write([][]byte{append(make([]byte, headroom, headroom+len(b)), b...)}, headroom)
		return
	}
	if to != nil {
		to.enqueue(b)
	}
}

// receive takes packets from the device to the hosts.
func (m *memory) receive() {
	bufs, sizes := make([][]byte, m.wire.BatchSize()), make([]int, m.wire.BatchSize())
	for i := range bufs {
		bufs[i] = make([]byte, headroom+65535)
	}
	for {
		n, err := m.wire.Read(bufs, sizes, headroom)
		if err != nil {
			return
		}
		for i := range n {
			b := slices.Clone(bufs[i][headroom : headroom+sizes[i]])
			if _, dst, ok := ends(b); ok {
				if h := m.hosts[dst]; h != nil {
					h.enqueue(b)
				}
			}
		}
	}
}
