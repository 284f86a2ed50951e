package tun

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/gso"
	"github.com/lbprim/lbprim/internal/spin"
)

// headerLen is the length of struct virtio_net_hdr.
const headerLen = 10

// batch is how many packets one Read takes at most. Each costs a system call of its own, so large
// batches gain little, and they delay their first packet.
const batch = 32

// enough is after how many bytes Read returns: super-packets are written while they are in the cache, and a batch of them would not fit there.
const enough = 32 << 10

// Device is one queue of an interface. The zero Device is closed, and has no name. A Device must not be copied.
// One goroutine may read it while another writes it; all other methods may be called from any.
type Device struct {
	link *link
	fd   int
	wake int // eventfd: readable once closed
	spin spin.Spinner

	closed  atomic.Bool
	reading sync.Mutex // held by Read: Close waits for it before the descriptors go
	writing sync.Mutex

	super gso.Splitter // of a super-packet that the kernel refused
	room  []byte       // for one of its packets

	errs  [len(kinds)]error // pre-made: the path of a packet does not allocate
	stats counters
}

// counters has those of Read and those of Write on cache lines of their own.
type counters struct {
	read, sleeps, oversized, short             atomic.Uint64
	_                                          [64]byte
	written, split                             atomic.Uint64
	again, noBufs, invalid, down, otherInWrite atomic.Uint64
	_                                          [64]byte
}

// kinds of errors that have a counter.
var kinds = [...]unix.Errno{unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.EINVAL, unix.EIO}

func newDevice(l *link, fd, wake, spins int) *Device {
	d := &Device{link: l, fd: fd, wake: wake, spin: spin.New(spins)}
	for i, k := range kinds {
		d.errs[i] = fmt.Errorf("tun: write %s: %w", l.name, k)
	}
	return d
}

// Name returns the name of the interface.
func (d *Device) Name() string { return d.shared().name }

// Index returns the number of the interface.
func (d *Device) Index() int { return d.shared().index }

// MTU returns the largest packet of the interface, as configured.
func (d *Device) MTU() int { return d.shared().mtu }

// Offload returns what the kernel leaves undone in the packets of this device.
func (d *Device) Offload() Offload { return d.shared().offload }

// VirtioHeader returns the length of the virtio-net header before each packet, read or written: 10.
func (d *Device) VirtioHeader() int { return headerLen }

// BatchSize returns how many packets one Read takes at most.
func (d *Device) BatchSize() int { return batch }

// Stats returns the counters. They are read one by one while others count.
func (d *Device) Stats() Stats {
	s := &d.stats
	return Stats{
		Read: s.read.Load(), Written: s.written.Load(), Split: s.split.Load(), Sleeps: s.sleeps.Load(),
		Oversized: s.oversized.Load(), Short: s.short.Load(),
		Again: s.again.Load(), NoBufs: s.noBufs.Load(), Invalid: s.invalid.Load(), Down: s.down.Load(), Other: s.otherInWrite.Load(),
	}
}

// Read waits for a packet, and returns it and those that are there already, at most len(bufs).
// Packet i is bufs[i][offset:offset+sizes[i]], its virtio-net header the ten bytes before; each
// buffer needs room for 65,535 bytes behind offset, else packets that do not fit are
// lost and counted. After Close the error wraps os.ErrClosed; when somebody else has deleted the
// interface it wraps the kernel's EBADFD. An interface taken down only falls silent.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	if offset < headerLen {
		return 0, fmt.Errorf("tun: read %s: offset %d: must be at least %d", d.name(), offset, headerLen)
	}
	if len(bufs) == 0 {
		return 0, nil
	}
	d.reading.Lock()
	defer d.reading.Unlock()
	for i := range bufs {
		if len(bufs[i]) <= offset {
			return 0, fmt.Errorf("tun: read %s: buffer %d has %d bytes: must have more than the offset, %d", d.name(), i, len(bufs[i]), offset)
		}
	}
	for misses, bytes := 0, 0; n < len(bufs) && bytes < enough; {
		if n == 0 && d.isClosed() {
			return 0, d.errClosed("read")
		}
		b := bufs[n][offset-headerLen:]
		size, errno := rawRead(d.fd, b)
		switch {
		case errno == 0:
			if d.keep(b, size) {
				sizes[n] = size - headerLen
				bytes += size
				n++
			}
		case errno == unix.EINTR:
		case n > 0:
			d.spin.Hit(misses)
			d.stats.read.Add(uint64(n))
			return n, nil // an error comes again
		case errno == unix.EAGAIN:
			if misses++; !d.spin.Again(misses) {
				misses = 0
				if err := d.sleep(); err != nil {
					return 0, err
				}
			}
		default:
			return 0, fmt.Errorf("tun: read %s: %w", d.name(), errno)
		}
	}
	d.stats.read.Add(uint64(n))
	return n, nil
}

// keep reports whether what was read is a whole packet. The kernel cuts one that is longer than the
// buffer without saying so: a full buffer is therefore compared with the packet's own length.
func (d *Device) keep(b []byte, size int) bool {
	if size <= headerLen {
		d.stats.short.Add(1)
		return false
	}
	if size < len(b) {
		return true
	}
	p := b[headerLen:]
	want := len(p) + 1
	switch {
	case p[0]>>4 == 4 && len(p) >= 20:
		want = int(p[2])<<8 | int(p[3])
	case p[0]>>4 == 6 && len(p) >= 40:
		want = 40 + (int(p[4])<<8 | int(p[5]))
	}
	if want <= len(p) {
		return true
	}
	d.stats.oversized.Add(1)
	return false
}

// sleep waits in the kernel until there is something to read, or Close was called.
func (d *Device) sleep() error {
	d.stats.sleeps.Add(1)
	start := time.Now()
	fds := [2]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(d.wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds[:], -1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("tun: poll %s: %w", d.name(), err)
		}
	}
	d.spin.Slept(time.Since(start))
	return nil
}

// Write sends bufs[i][offset:], each with its virtio-net header in the ten bytes before, and
// returns how many the kernel took. An error is that of bufs[n]; the packets behind it have not been tried.
func (d *Device) Write(bufs [][]byte, offset int) (n int, err error) {
	if offset < headerLen {
		return 0, fmt.Errorf("tun: write %s: offset %d: must be at least %d", d.name(), offset, headerLen)
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.isClosed() {
		return 0, d.errClosed("write")
	}
	for n < len(bufs) {
		if len(bufs[n]) <= offset {
			err = d.failed(unix.EINVAL)
			break
		}
		b := bufs[n][offset-headerLen:]
		size, errno := rawWrite(d.fd, b)
		if errno == unix.EINTR {
			continue
		}
		if errno == unix.EINVAL {
			errno = d.writeSplit(b)
			size = len(b)
		}
		if errno != 0 {
			err = d.failed(errno)
			break
		}
		if size != len(b) {
			d.stats.otherInWrite.Add(1)
			err = fmt.Errorf("tun: write %s: %d of %d bytes", d.name(), size, len(b))
			break
		}
		n++
	}
	d.stats.written.Add(uint64(n))
	return n, err
}

// writeSplit sends a super-packet that the kernel refused as single packets: some kernels do so where a segment size is odd.
func (d *Device) writeSplit(b []byte) unix.Errno {
	n := d.super.Begin(b, b[headerLen:], false)
	if n == 0 {
		return unix.EINVAL
	}
	if d.room == nil {
		d.room = make([]byte, headerLen+65535)
	}
	for i := 0; i < n; {
		_, errno := rawWrite(d.fd, d.room[:headerLen+d.super.Put(d.room[headerLen:], i)])
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

func (d *Device) failed(errno unix.Errno) error {
	switch errno {
	case unix.EAGAIN:
		d.stats.again.Add(1)
	case unix.ENOBUFS, unix.ENOMEM:
		d.stats.noBufs.Add(1)
	case unix.EINVAL:
		d.stats.invalid.Add(1)
	case unix.EIO:
		d.stats.down.Add(1)
	default:
		d.stats.otherInWrite.Add(1)
	}
	for i, k := range kinds {
		if errno == k {
			return d.errs[i]
		}
	}
	return fmt.Errorf("tun: write %s: %w", d.name(), errno)
}

// Close ends a Read that waits, and removes the interface with its addresses and routes once
// all its queues are closed. Closing again does nothing.
func (d *Device) Close() error {
	if d.link == nil || d.closed.Swap(true) {
		return nil
	}
	one := [8]byte{7: 1} // an eventfd takes any number but 0, in native order
	_, _ = unix.Write(d.wake, one[:])
	d.reading.Lock()
	defer d.reading.Unlock()
	d.writing.Lock()
	defer d.writing.Unlock()
	err := os.NewSyscallError("close", unix.Close(d.fd))
	unix.Close(d.wake)
	d.link.release()
	return err
}

// shared is the interface, an empty one of the zero Device.
func (d *Device) shared() *link {
	if d.link == nil {
		return new(link)
	}
	return d.link
}

func (d *Device) isClosed() bool { return d.link == nil || d.closed.Load() }

func (d *Device) name() string {
	if d.link == nil {
		return "device"
	}
	return d.link.name
}

func (d *Device) errClosed(op string) error {
	return fmt.Errorf("tun: %s %s: %w", op, d.name(), os.ErrClosed)
}

// rawRead and rawWrite do not tell the scheduler: on a descriptor that never blocks the calls are as
// short as copying, and the announcement costs more than it could win.
func rawRead(fd int, b []byte) (int, unix.Errno) {
	r, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(r), e
}

func rawWrite(fd int, b []byte) (int, unix.Errno) {
	r, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(r), e
}
