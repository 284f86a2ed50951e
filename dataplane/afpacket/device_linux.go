package afpacket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	virtioLen = 10 // struct virtio_net_hdr
	portRoom  = 16 // the interface index lies this far before the packet
)

// Device is a set of packet sockets, one per interface. Use [Open]. It must not be copied.
type Device struct {
	cfg     Config
	ports   []*port // in the order of Config.Interfaces
	byIndex atomic.Pointer[map[uint32]*port]
	wake    int // an eventfd that Close writes to
	closed  atomic.Bool
	once    sync.Once
	busy    sync.WaitGroup // callers inside the kernel, so that Close frees descriptors last
	gate    sync.RWMutex

	next  int // the port Read looks at first
	spin  spinner
	polls []unix.PollFd
	vips  atomic.Pointer[vipSet]
	stats counters
	out   batch // Write's headers
}

type counters struct {
	received, sent, otherHost, truncated, kernelDrop atomic.Uint64
	sendFailed, queueFull, refused, down, answered   atomic.Uint64
	_                                                [64]byte
}

// Open opens the interfaces. It needs CAP_NET_RAW. See [Preflight] for what else the host needs.
func Open(cfg *Config) (*Device, error) {
	c, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Device{cfg: c, wake: -1, spin: spinner{most: max(c.Spin, 0)}}
	d.spin.left = d.spin.most
	if d.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("afpacket: eventfd: %w", err)
	}
	var faults []error
	for _, name := range c.Interfaces {
		p, err := openPort(name, &c)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		d.ports = append(d.ports, p)
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

// An Interface is one of the interfaces of a Device as it is now.
type Interface struct {
	Name  string
	Index uint32           // 0 while the interface is gone
	MAC   net.HardwareAddr // do not modify
}

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
	for _, p := range d.ports {
		p.countDrops(&d.stats)
	}
	c := &d.stats
	return Stats{
		Received: c.received.Load(), Sent: c.sent.Load(), OtherHost: c.otherHost.Load(), Truncated: c.truncated.Load(),
		KernelDrop: c.kernelDrop.Load(), SendFailed: c.sendFailed.Load(), QueueFull: c.queueFull.Load(), Refused: c.refused.Load(),
		Down: c.down.Load(), Answered: c.answered.Load(),
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
			p.close()
		}
		if d.wake >= 0 {
			unix.Close(d.wake)
		}
	})
	return nil
}

// Read fills bufs with frames from all interfaces in turn and waits for the first. The interface index lies at offset-16, the
// virtio-net header at offset-10, so offset must be 16 or more. Read may swap the elements of bufs, so that those it fills come first.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if offset < portRoom {
		return 0, fmt.Errorf("afpacket: read: offset %d: want %d or more", offset, portRoom)
	}
	if len(bufs) == 0 {
		return 0, nil
	}
	if !d.enter() {
		return 0, fmt.Errorf("afpacket: read: %w", os.ErrClosed)
	}
	defer d.busy.Done()
	for {
		if d.closed.Load() {
			return 0, fmt.Errorf("afpacket: read: %w", os.ErrClosed)
		}
		n := 0
		for range d.ports {
			p := d.ports[d.next]
			d.next = (d.next + 1) % len(d.ports)
			n += d.receive(p, bufs[n:], sizes[n:], offset)
			if n == len(bufs) {
				break
			}
		}
		if n > 0 {
			d.spin.found()
			d.stats.received.Add(uint64(n))
			return n, nil
		}
		if d.spin.again() {
			continue
		}
		d.wait()
	}
}

// wait sleeps until an interface has a frame, comes back, or the device is closed.
func (d *Device) wait() {
	timeout := -1
	d.polls = append(d.polls[:0], unix.PollFd{Fd: int32(d.wake), Events: unix.POLLIN})
	for _, p := range d.ports {
		if p.down {
			timeout = 500 // look for the interface twice a second
		}
		if p.gone.Load() {
			continue
		}
		d.polls = append(d.polls, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN})
	}
	_, err := unix.Poll(d.polls, timeout)
	if err != nil && err != unix.EINTR {
		// Nothing sensible is left to wait for; do not spin on it.
		runtime.Gosched()
	}
	if timeout < 0 {
		return
	}
	for _, p := range d.ports {
		if p.down {
			p.check()
		}
		if p.gone.Load() && p.bind(&d.cfg) == nil {
			d.index()
			d.announce(p)
		}
	}
}

// receive reads what the interface has, without waiting, and closes the gaps left by frames that are not delivered.
func (d *Device) receive(p *port, bufs [][]byte, sizes []int, offset int) (n int) {
	if p.gone.Load() {
		return 0
	}
	want := min(len(bufs), d.cfg.BatchSize)
	b := &p.in
	for i := range want {
		b.set(i, bufs[i][offset-virtioLen:])
		b.msgs[i].hdr.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		b.msgs[i].hdr.Namelen = uint32(unsafe.Sizeof(b.names[i]))
		b.msgs[i].hdr.Control = &b.control[i*controlLen]
		b.msgs[i].hdr.SetControllen(controlLen)
		b.msgs[i].hdr.Flags = 0
	}
	got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&b.msgs[0])), uintptr(want), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return 0
	default:
		p.down = true
		p.check()
		return 0
	}
	p.down = false
	index := p.index.Load()
	for i := range int(got) {
		m := &b.msgs[i]
		length := int(m.len) - virtioLen
		if t := b.names[i].Pkttype; t == unix.PACKET_OTHERHOST || t == unix.PACKET_OUTGOING {
			d.stats.otherHost.Add(1)
			continue
		}
		if length < 14 || m.hdr.Flags&unix.MSG_TRUNC != 0 || length > len(bufs[i])-offset {
			d.stats.truncated.Add(1)
			continue
		}
		if tci, tpid, ok := vlan(m, b.control[i*controlLen:(i+1)*controlLen]); ok {
			if length += tagLen; length > len(bufs[i])-offset {
				d.stats.truncated.Add(1)
				continue
			}
			insertTag(bufs[i][offset-virtioLen:offset+length], tpid, tci)
		}
		frame := bufs[i][offset : offset+length]
		if vips := d.vips.Load(); vips != nil && d.answer(p, vips, frame) {
			continue
		}
		*(*uint32)(unsafe.Pointer(&bufs[i][offset-portRoom])) = index
		sizes[n] = length
		if i != n {
			// Swap the buffers, so that the delivered frames are the first ones.
			bufs[i], bufs[n] = bufs[n], bufs[i]
		}
		n++
	}
	return n
}

// Write sends each frame by the interface whose index lies at offset-16 of its buffer.
func (d *Device) Write(bufs [][]byte, offset int) (int, error) {
	if offset < portRoom {
		return 0, fmt.Errorf("afpacket: write: offset %d: want %d or more", offset, portRoom)
	}
	if !d.enter() {
		return 0, fmt.Errorf("afpacket: write: %w", os.ErrClosed)
	}
	defer d.busy.Done()
	byIndex := *d.byIndex.Load()
	for done := 0; done < len(bufs); {
		index := *(*uint32)(unsafe.Pointer(&bufs[done][offset-portRoom]))
		p := byIndex[index]
		if p == nil || p.gone.Load() {
			d.stats.sendFailed.Add(1)
			d.stats.down.Add(1)
			return done, &SendError{Interface: int(index), Err: unix.ENODEV}
		}
		// Frames for one interface go together.
		run := 1
		for done+run < len(bufs) && run < d.cfg.BatchSize && *(*uint32)(unsafe.Pointer(&bufs[done+run][offset-portRoom])) == index {
			run++
		}
		for i := range run {
			d.out.set(i, bufs[done+i][offset-virtioLen:])
		}
		sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&d.out.msgs[0])), uintptr(run), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno == 0 {
			done += int(sent)
			d.stats.sent.Add(uint64(sent))
			continue
		}
		d.stats.sendFailed.Add(1)
		switch errno {
		case unix.ENOBUFS, unix.EAGAIN:
			d.stats.queueFull.Add(1)
		case unix.EINVAL, unix.EMSGSIZE:
			d.stats.refused.Add(1)
		case unix.ENETDOWN, unix.ENXIO, unix.ENODEV:
			d.stats.down.Add(1)
		}
		return done, &SendError{Interface: int(index), Err: errno}
	}
	return len(bufs), nil
}

// SendError says why the kernel did not take a frame. It wraps the kernel's error.
type SendError struct {
	Interface int // the index the frame was to leave by
	Err       error
}

func (e *SendError) Error() string {
	return fmt.Sprintf("afpacket: write to interface %d: %v", e.Interface, e.Err)
}

// Unwrap returns the kernel's error.
func (e *SendError) Unwrap() error { return e.Err }

// SetVIPs makes the device answer ARP and Neighbor Discovery for these addresses, and for no others,
// on all its interfaces, and announces those that are new.
func (d *Device) SetVIPs(vips ...netip.Addr) error {
	set, err := newVIPSet(vips)
	if err != nil {
		return err
	}
	d.vips.Store(set)
	if !d.enter() {
		return fmt.Errorf("afpacket: set VIPs: %w", os.ErrClosed)
	}
	defer d.busy.Done()
	for _, p := range d.ports {
		d.announce(p)
	}
	return nil
}
