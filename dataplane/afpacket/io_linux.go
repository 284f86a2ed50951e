package afpacket

import (
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	for i := range bufs {
		if len(bufs[i]) <= offset {
			return 0, fmt.Errorf("afpacket: read: buffer %d has %d bytes: want more than the offset, %d", i, len(bufs[i]), offset)
		}
	}
	for misses := 0; ; {
		if d.closed.Load() {
			return 0, fmt.Errorf("afpacket: read: %w", os.ErrClosed)
		}
		if n := d.collect(bufs, sizes, offset); n > 0 {
			if d.reads++; d.reads%lookEvery == 0 {
				d.look() // which wait does as well, but there is none while other interfaces are busy
			}
			d.spin.Hit(misses)
			d.stats.received.Add(uint64(n))
			return n, nil
		}
		if misses++; !d.spin.Again(misses) {
			misses = 0
			d.wait()
		}
	}
}

// lookEvery is after how many Reads that found something interfaces that are gone are looked for: a busy device has thousands a second.
const lookEvery = 1024

// collect asks every interface once. One that filled the buffers comes last the next time, but one that had to do with what others
// left comes first, so that none starves beside busy ones.
func (d *Device) collect(bufs [][]byte, sizes []int, offset int) (n int) {
	first := d.next
	for i := range d.ports {
		at := (first + i) % len(d.ports)
		n += d.receive(d.ports[at], bufs[n:], sizes[n:], offset)
		if n == len(bufs) {
			if d.next = at; i == 0 {
				d.next = (at + 1) % len(d.ports)
			}
			return n
		}
	}
	d.next = (first + 1) % len(d.ports)
	return n
}

// wait sleeps until an interface has a frame, comes back, or the device is closed.
func (d *Device) wait() {
	timeout := -1
	d.polls = append(d.polls[:0], unix.PollFd{Fd: int32(d.wake), Events: unix.POLLIN})
	d.polled = d.polled[:0]
	for _, p := range d.ports {
		if p.down || p.ring.frames != nil {
			timeout = 500 // look for the interface, and after the ring, twice a second
		}
		if p.gone.Load() {
			continue
		}
		d.polls = append(d.polls, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN})
		d.polled = append(d.polled, p)
	}
	d.stats.sleeps.Add(1)
	start := time.Now()
	n, err := unix.Poll(d.polls, timeout)
	d.spin.Slept(time.Since(start))
	if n == 0 {
		for _, p := range d.polled {
			p.unstick(&d.stats)
		}
	}
	for i, p := range d.polls[1:] {
		if p.Revents&unix.POLLERR != 0 {
			d.polled[i].failed()
		}
	}
	if err != nil && err != unix.EINTR {
		// Nothing sensible is left to wait for; do not spin on it.
		runtime.Gosched()
	}
	if timeout >= 0 {
		d.look()
	}
}

// look sees whether interfaces that were down or gone are back.
func (d *Device) look() {
	for _, p := range d.ports {
		if p.down {
			p.check()
		}
		if p.gone.Load() && d.reopen(p) {
			d.index()
			announce(p, d.group.vips.Load())
		}
	}
}

// reopen opens the socket of an interface that has come back.
func (d *Device) reopen(p *port) bool {
	p.countDrops(&d.stats)
	d.group.mu.Lock()
	defer d.group.mu.Unlock()
	return p.reopen(&d.cfg, d.group) == nil
}

// receive reads what the interface has, without waiting, and closes the gaps left by frames that are not delivered.
func (d *Device) receive(p *port, bufs [][]byte, sizes []int, offset int) (n int) {
	if p.gone.Load() {
		return 0
	}
	bufs = bufs[:min(len(bufs), d.cfg.BatchSize)]
	var got int
	var errno unix.Errno
	if p.ring.frames != nil {
		got, errno = p.fromRing(bufs, offset, &d.stats)
	} else {
		got, errno = p.fromSocket(bufs, offset, p.in.arrived)
	}
	if errno != 0 {
		p.down = true
		p.check()
	}
	if got == 0 {
		return 0
	}
	if p.down && errno == 0 {
		p.down = false
		announce(p, d.group.vips.Load()) // what was said meanwhile was lost
	}
	index := p.index.Load()
	for i := range got {
		a := &p.in.arrived[i]
		if a.kind == unix.PACKET_OTHERHOST || a.kind == unix.PACKET_OUTGOING {
			d.stats.otherHost.Add(1)
			continue
		}
		if a.lost {
			d.stats.kernelDrop.Add(1)
			continue
		}
		length := a.length
		if length < 14 || a.cut || length > len(bufs[i])-offset {
			d.stats.truncated.Add(1)
			continue
		}
		if a.tagged {
			if length += tagLen; length > len(bufs[i])-offset {
				d.stats.truncated.Add(1)
				continue
			}
			insertTag(bufs[i][offset-virtioLen:offset+length], a.tpid, a.tci)
		}
		frame := bufs[i][offset : offset+length]
		if vips := d.group.vips.Load(); vips != nil && d.answer(p, vips, frame) {
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

// arrived is what is known of a frame beside its bytes.
type arrived struct {
	length    int   // without the virtio-net header
	kind      uint8 // of packet, PACKET_HOST and others
	cut       bool  // there is more of it than there was room for
	lost      bool  // the kernel had no room for all of it
	tagged    bool  // the kernel took a VLAN tag off
	tci, tpid uint16
}

// fromSocket reads frames by a system call, and says of each what is known.
func (p *port) fromSocket(bufs [][]byte, offset int, to []arrived) (int, unix.Errno) {
	b := &p.in
	for i := range bufs {
		b.set(i, bufs[i][offset-virtioLen:])
		b.msgs[i].hdr.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		b.msgs[i].hdr.Namelen = uint32(unsafe.Sizeof(b.names[i]))
		b.msgs[i].hdr.Control = &b.control[i*controlLen]
		b.msgs[i].hdr.SetControllen(controlLen)
		b.msgs[i].hdr.Flags = 0
	}
	got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&b.msgs[0])), uintptr(len(bufs)), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR: // a call that waits for nothing is not interrupted
		return 0, 0
	default:
		return 0, errno
	}
	for i := range int(got) {
		m, a := &b.msgs[i], &to[i]
		*a = arrived{length: int(m.len) - virtioLen, kind: b.names[i].Pkttype, cut: m.hdr.Flags&unix.MSG_TRUNC != 0}
		a.tci, a.tpid, a.tagged = vlan(m, b.control[i*controlLen:(i+1)*controlLen])
	}
	return int(got), 0
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
	for done := 0; done < len(bufs); {
		if len(bufs[done]) <= offset {
			d.stats.sendFailed.Add(1)
			d.stats.refused.Add(1)
			return done, &SendError{Err: unix.EINVAL}
		}
		byIndex := *d.byIndex.Load()
		index := *(*uint32)(unsafe.Pointer(&bufs[done][offset-portRoom]))
		p := byIndex[index]
		if p == nil || p.gone.Load() {
			d.stats.sendFailed.Add(1)
			d.stats.down.Add(1)
			return done, &SendError{Interface: int(index), Err: unix.ENODEV}
		}
		// Frames for one interface go together.
		run := 1
		for done+run < len(bufs) && run < d.cfg.BatchSize && len(bufs[done+run]) > offset && *(*uint32)(unsafe.Pointer(&bufs[done+run][offset-portRoom])) == index {
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
		if errno == unix.EINVAL {
			if errno = d.writeSplit(p, bufs[done][offset-virtioLen:]); errno == 0 {
				done++
				d.stats.sent.Add(1)
				continue
			}
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

// writeSplit sends a super-packet that the kernel refused as single packets: some kernels do so where a segment size is odd.
func (d *Device) writeSplit(p *port, b []byte) unix.Errno {
	n := d.super.Begin(b, b[virtioLen:], true)
	if n == 0 {
		return unix.EINVAL
	}
	if d.room == nil {
		d.room = make([]byte, virtioLen+65535+14+4*tagLen)
	}
	for i := 0; i < n; {
		frame := d.room[:virtioLen+d.super.Put(d.room[virtioLen:], i)]
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(p.fd), uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)), unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return errno
		}
		i++
	}
	d.stats.split.Add(1)
	return 0
}
