package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// port is the packet socket of one interface.
type port struct {
	name  string
	fd    int
	index atomic.Uint32
	gone  atomic.Bool // the interface was removed; bound anew when one of that name is there again
	down  bool        // Read was told that it is down, and has seen no frame since
	in    batch       // Read's headers
	drops sync.Mutex
	mac   atomic.Pointer[net.HardwareAddr]
}

func openPort(name string, c *Config) (*port, error) {
	p := &port{name: name, fd: -1, in: newBatch(c.BatchSize)}
	if err := p.open(c); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

func (p *port) open(c *Config) error {
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
	buffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, c.ReceiveBuffer)
	buffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, c.SendBuffer)
	return p.bind(c)
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

// buffer sets a buffer size beyond the system's limit where it may, else up to it.
func buffer(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// check notes whether the socket's interface still exists. When one is removed, the socket is told once, when it goes
// down before, and then stays bound to nothing, so a socket that is down looks for itself.
func (p *port) check() {
	if index, _, err := p.lookup(); err != nil || index != p.index.Load() {
		p.gone.Store(true)
	}
}

func (p *port) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// countDrops adds the frames the kernel dropped since the last call: reading the statistics resets them.
func (p *port) countDrops(c *counters) {
	p.drops.Lock()
	defer p.drops.Unlock()
	if st, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		c.kernelDrop.Add(uint64(st.Drops))
	}
}

// batch is the headers of one recvmmsg or sendmmsg.
type batch struct {
	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrLinklayer
	control []byte
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// controlLen is room for one PACKET_AUXDATA message.
var controlLen = unix.CmsgSpace(int(unsafe.Sizeof(unix.TpacketAuxdata{})))

func newBatch(n int) batch {
	b := batch{msgs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), names: make([]unix.RawSockaddrLinklayer, n), control: make([]byte, n*controlLen)}
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
