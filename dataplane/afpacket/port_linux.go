package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/sockbuf"
)

// port is the packet socket of one interface.
type port struct {
	name  string
	fd    int
	index atomic.Uint32
	gone  atomic.Bool // the interface was removed; bound anew when one of that name is there again
	down  bool        // Read was told that it is down, and has seen no frame since
	in    batch       // Read's headers
	ring  ring
	drops sync.Mutex
	count uint64           // of frames the kernel dropped; guarded by drops
	heard map[[6]byte]bool // multicast addresses asked for, see follow
	mac   atomic.Pointer[net.HardwareAddr]
}

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// open opens a socket that delivers nothing yet, ties it to the interface, and lets it deliver. g.mu is held, or the Device is
// not yet known to others.
func (p *port) open(c *Config, g *group) error {
	// Bound to no protocol until all options are set, so that no frame comes too early.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("afpacket: interface %q: packet socket: %w (needs CAP_NET_RAW)", p.name, err)
		}
		return fmt.Errorf("afpacket: interface %q: packet socket: %w", p.name, err)
	}
	p.fd = fd
	for _, o := range []struct {
		what string
		opt  int
	}{
		{"PACKET_VNET_HDR", unix.PACKET_VNET_HDR},
		{"PACKET_AUXDATA", unix.PACKET_AUXDATA},
		{"PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.opt, 1); err != nil {
			return fmt.Errorf("afpacket: interface %q: %s: %w", p.name, o.what, err)
		}
	}
	sockbuf.SetReceive(fd, c.ReceiveBuffer)
	sockbuf.SetSend(fd, c.SendBuffer)
	if !c.NoRing {
		_ = p.ring.open(fd, min(c.ReceiveBuffer, maxRing)) // without one, frames are read by system calls
	}
	if g.fanout == nil {
		err = p.bind(c)
	} else {
		// Between bind and join it would get the other queues' frames too.
		if err := p.attach(unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}); err != nil {
			return fmt.Errorf("afpacket: interface %q: SO_ATTACH_FILTER: %w", p.name, err)
		}
		if err = p.bind(c); err == nil {
			err = p.join(g)
		}
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
	}
	if err != nil {
		return err
	}
	return p.follow(g.vips.Load(), g.fanout != nil)
}

// reopen ties the socket to an interface that has come back. One that has joined a fanout cannot be bound again: a new one takes
// its place and its number, so that a Write under way keeps a valid descriptor. The group's lock is held.
func (p *port) reopen(c *Config, g *group) error {
	if g.fanout == nil {
		p.heard = nil
		if err := p.bind(c); err != nil {
			return err
		}
		return p.follow(g.vips.Load(), false)
	}
	if _, _, err := p.lookup(); err != nil {
		return err // as ever, but for less
	}
	return p.inItsNamespace(func() error {
		fresh := &port{name: p.name, fd: -1}
		defer fresh.close()
		if err := fresh.open(c, g); err != nil {
			return err
		}
		if err := unix.Dup3(fresh.fd, p.fd, unix.O_CLOEXEC); err != nil {
			return err
		}
		p.ring, fresh.ring = fresh.ring, p.ring // the old one's goes with fresh
		p.heard = fresh.heard
		p.mac.Store(fresh.mac.Load())
		p.index.Store(fresh.index.Load())
		p.gone.Store(false)
		return nil
	})
}

// inItsNamespace calls f on a thread in the network namespace of the socket, which need not be that of the caller.
func (p *port) inItsNamespace(f func() error) error {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.fd), unix.SIOCGSKNS, 0)
	if errno != 0 {
		return f() // without privileges there is no other
	}
	defer unix.Close(int(fd))
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		var socket, thread unix.Stat_t
		if unix.Fstat(int(fd), &socket) == nil && unix.Stat("/proc/thread-self/ns/net", &thread) == nil && socket.Ino == thread.Ino && socket.Dev == thread.Dev {
			defer runtime.UnlockOSThread()
		} else if err := unix.Setns(int(fd), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- os.NewSyscallError("setns", err)
			return
		} // else the thread dies there with this goroutine
		done <- f()
	}()
	return <-done
}

// bind ties the socket to the interface that has the name now. It asks through the socket, which
// stays in the network namespace it was opened in.
func (p *port) bind(c *Config) error {
	index, mac, err := p.lookup()
	if err != nil {
		return fmt.Errorf("afpacket: interface %q: %w", p.name, err)
	}
	if err := unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: int(index)}); err != nil {
		return fmt.Errorf("afpacket: interface %q: bind: %w", p.name, err)
	}
	if c.Promiscuous {
		m := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(p.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
			return fmt.Errorf("afpacket: interface %q: promiscuous mode: %w", p.name, err)
		}
	}
	p.mac.Store(&mac)
	p.index.Store(index)
	p.gone.Store(false)
	return nil
}

// lookup returns the index and hardware address of the interface (netdevice(7)).
func (p *port) lookup() (index uint32, mac net.HardwareAddr, err error) {
	var req struct {
		name [unix.IFNAMSIZ]byte
		data [24]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], p.name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.fd), unix.SIOCGIFINDEX, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return 0, nil, errno
	}
	index = binary.NativeEndian.Uint32(req.data[:])
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.fd), unix.SIOCGIFHWADDR, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return 0, nil, errno
	}
	if family := binary.NativeEndian.Uint16(req.data[:]); family != unix.ARPHRD_ETHER && family != unix.ARPHRD_LOOPBACK {
		return 0, nil, fmt.Errorf("link type %d is not Ethernet", family)
	}
	return index, append(mac, req.data[2:8]...), nil
}

// refresh looks the interface's hardware address up anew; it may change at any time.
func (p *port) refresh() net.HardwareAddr {
	index, mac, err := p.lookup()
	if err == nil && index == p.index.Load() && !slices.Equal(mac, *p.mac.Load()) {
		p.mac.Store(&mac)
	}
	return *p.mac.Load()
}

// check notes whether the socket's interface still exists. When one is removed, the socket is told once, when it goes
// down before, and then stays bound to nothing, so a socket that is down looks for itself.
func (p *port) check() {
	if index, _, err := p.lookup(); err != nil || index != p.index.Load() {
		p.gone.Store(true)
	}
}

// failed takes note of an error that the kernel has for the socket, if it has one.
func (p *port) failed() bool {
	if e, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e == 0 {
		return false
	}
	p.down = true
	p.check()
	return true
}

func (p *port) close() {
	p.ring.close()
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// countDrops adds the frames the kernel dropped since the last call, as reading the statistics resets them, and returns how many there
// ever were.
func (p *port) countDrops(c *counters) uint64 {
	p.drops.Lock()
	defer p.drops.Unlock()
	if p.fd < 0 {
		return p.count
	}
	if st, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		c.kernelDrop.Add(uint64(st.Drops))
		p.count += uint64(st.Drops)
	}
	return p.count
}

// batch is the headers of one recvmmsg or sendmmsg.
type batch struct {
	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrLinklayer
	control []byte
	arrived []arrived
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// controlLen is room for one PACKET_AUXDATA message.
var controlLen = unix.CmsgSpace(int(unsafe.Sizeof(unix.TpacketAuxdata{})))

func newBatch(n int) batch {
	b := batch{msgs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), names: make([]unix.RawSockaddrLinklayer, n), control: make([]byte, n*controlLen), arrived: make([]arrived, n)}
	for i := range b.msgs {
		b.msgs[i].hdr.Iov = &b.iovs[i]
		b.msgs[i].hdr.SetIovlen(1)
	}
	return b
}

func (b *batch) set(i int, buf []byte) {
	b.iovs[i].Base = &buf[0]
	b.iovs[i].SetLen(len(buf))
}

// vlan returns the tag that the kernel took off the frame, if any.
func vlan(m *mmsghdr, control []byte) (tci, tpid uint16, ok bool) {
	const header = unix.SizeofCmsghdr
	if int(m.hdr.Controllen) < header+int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
		return 0, 0, false
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	if h.Level != unix.SOL_PACKET || h.Type != unix.PACKET_AUXDATA {
		return 0, 0, false
	}
	aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&control[unix.CmsgLen(0)]))
	if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return 0, 0, false
	}
	tpid = 0x8100
	if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = aux.Vlan_tpid
	}
	return aux.Vlan_tci, tpid, true
}
