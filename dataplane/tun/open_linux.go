package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/rtnl"
)

const path = "/dev/net/tun"

// Offload flags that x/sys lacks (linux/if_tun.h, Linux 6.2).
const (
	offloadUSO4 = 0x20
	offloadUSO6 = 0x40
)

// link is what the queues of one interface share.
type link struct {
	name    string
	index   int
	mtu     int
	offload Offload
	rules   []rtnl.Rule
	queues  atomic.Int32 // still open
	ns      int          // the network namespace, -1 unless rules are to be removed there

	mu     sync.Mutex
	routes []netip.Prefix // to the interface, in the main table
}

// Open makes an interface with one queue and takes it up. The error says which step failed, and wraps
// the kernel's.
func Open(cfg *Config) (*Device, error) {
	queues, err := OpenQueues(cfg, 1)
	if err != nil {
		return nil, err
	}
	return queues[0], nil
}

// OpenQueues makes an interface with n queues. The kernel gives a flow's packets to the queue that has last written packets of its other
// direction, and keeps up to 4,096 such flows in mind; others it spreads by their hash. So where the reader of a queue writes
// to the same queue what it has translated, both directions of a connection come by the queue of its first packet. The interface
// goes when the last queue is closed.
func OpenQueues(cfg *Config, n int) (queues []*Device, err error) {
	c, err := cfg.complete(n)
	if err != nil {
		return nil, err
	}
	l := &link{name: c.Name, mtu: c.MTU, ns: -1}
	defer func() {
		if err != nil {
			for _, q := range queues {
				q.Close()
			}
			queues = nil
		}
	}()
	for i := range n {
		q, err := l.attach(&c, n > 1)
		if err != nil {
			return queues, fmt.Errorf("tun: queue %d of %s: %w", i, l.name, err)
		}
		queues = append(queues, q)
	}
	if err := l.configure(&c); err != nil {
		return queues, fmt.Errorf("tun: %s: %w", l.name, err)
	}
	return queues, nil
}

// ifreq is struct ifreq with the member that TUNSETIFF reads.
type ifreq struct {
	name  [unix.IFNAMSIZ]byte
	flags uint16
	_     [22]byte
}

func ioctl(fd int, request uint, arg uintptr) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), arg); e != 0 {
		return e
	}
	return nil
}

// attach opens one more queue of l.
func (l *link) attach(c *Config, multi bool) (d *Device, err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, privileges(&os.PathError{Op: "open", Path: path, Err: err})
	}
	wake := -1
	defer func() {
		if err != nil {
			unix.Close(fd)
			if wake >= 0 {
				unix.Close(wake)
			}
		}
	}()
	req := ifreq{flags: unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR}
	if multi {
		req.flags |= unix.IFF_MULTI_QUEUE
	}
	copy(req.name[:maxName], l.name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&req))); e != 0 {
		return nil, privileges(os.NewSyscallError("TUNSETIFF", e))
	}
	l.name = unix.ByteSliceToString(req.name[:])
	size := int32(headerLen)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETVNETHDRSZ, uintptr(unsafe.Pointer(&size))); e != 0 {
		return nil, os.NewSyscallError("TUNSETVNETHDRSZ", e)
	}
	if err := l.setOffload(fd, c.NoOffload); err != nil {
		return nil, err
	}
	if wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	l.queues.Add(1)
	return newDevice(l, fd, wake, c.Spin), nil
}

// privileges says what is missing where the kernel says no.
func privileges(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w (needs root, or CAP_NET_ADMIN and access to %s)", err, path)
	}
	return err
}

// setOffload asks for everything, then for less.
func (l *link) setOffload(fd int, none bool) error {
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	attempts := []struct {
		flags uintptr
		got   Offload
	}{
		{tcp | offloadUSO4 | offloadUSO6, Offload{Checksum: true, TCP: true, UDP: true}},
		{tcp, Offload{Checksum: true, TCP: true}},
		{unix.TUN_F_CSUM, Offload{Checksum: true}},
		{0, Offload{}},
	}
	if none {
		attempts = attempts[len(attempts)-1:]
	}
	var err error
	for _, a := range attempts {
		if err = ioctl(fd, unix.TUNSETOFFLOAD, a.flags); err == nil {
			l.offload = a.got
			return nil
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return os.NewSyscallError("TUNSETOFFLOAD", err)
}

func (l *link) configure(c *Config) (err error) {
	if l.index, err = rtnl.Index(l.name); err != nil {
		return err
	}
	if err := rtnl.SetMTU(l.index, c.MTU); err != nil {
		return err
	}
	if err := rtnl.SetQueueLen(l.index, c.QueueLen); err != nil {
		return err
	}
	// Tunnels' outer packets and ICMP errors come from an address of this host, and the kernel takes an IPv4 packet that comes in with
	// one of its own addresses for a martian, unless told otherwise of the interface. Where /proc is read-only, all other packets still pass.
	_ = os.WriteFile("/proc/sys/net/ipv4/conf/"+l.name+"/accept_local", []byte("1"), 0)
	if err := rtnl.SetUp(l.index, true); err != nil {
		return err
	}
	for _, p := range c.Addrs {
		if err := rtnl.AddAddr(l.index, p); err != nil {
			return err
		}
	}
	for _, p := range c.Routes {
		if err := rtnl.ReplaceRoute(rtnl.Route{Dst: p.Masked(), Index: l.index}); err != nil {
			return err
		}
		l.routes = append(l.routes, p.Masked())
	}
	if len(c.Divert)+len(c.Proxies) == 0 {
		return nil
	}
	return l.divert(c.Divert, c.Proxies)
}
