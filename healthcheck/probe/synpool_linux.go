package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/internal/sockbuf"
)

const (
	// synPorts is how many ports a pool sends from, and so how many half-open probes
	// of one target may be under way. A port and target come again after as many
	// probes, when the server has forgotten the last.
	synPorts = 16
	// sourceTTL is how long a target's source address is believed.
	sourceTTL  = 10 * time.Second
	maxSources = 1 << 16
	// maxSegments is how many answers are read before others have their turn. The poller
	// tells of the rest again.
	maxSegments = 256
	// poolBuffer is for bursts: what the system has by default holds some hundred SYNs.
	poolBuffer = 4 << 20
)

// synPool is the raw socket that all half-open probes of one kind share: they are told
// apart by target, port and sequence number. The kernel shows it every TCP segment that
// this machine receives, of which a filter leaves the answers.
type synPool struct {
	e    *engine
	kind sockKind
	s    *sock // the raw socket

	mu      sync.Mutex
	holds   []int // TCP sockets, bound, so that nobody else is given the ports
	ports   []uint16
	next    int
	talks   map[synKey]*synTalk
	armed   bool // the poller tells of answers
	closed  bool // its descriptors may be those of others by now
	aged    bool // closed, since nobody used it: there may be another by now
	unused  bool // nobody has entered since the last sweep
	route   int  // a UDP socket to ask for source addresses by, or -1
	sources map[netip.Addr]sourceAddr
	buf     [512]byte
	oob     [512]byte
	segment []byte
	ended   []synEnd // to be told when the lock is free
}

type synKey struct {
	target netip.AddrPort // without a zone
	port   uint16
}

type sourceAddr struct {
	addr netip.Addr
	oob  []byte // has the kernel send from it
	at   time.Time
}

type synEnd struct {
	t   *synTalk
	err error
}

// synPool returns the pool of a kind. errNoRaw: there can be none.
func (e *engine) synPool(kind sockKind) (*synPool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, ok := e.pools[kind]
	switch {
	case e.closed:
		return nil, localError{healthcheck.ErrScopeClosed}
	case p != nil:
		return p, nil
	case ok:
		return nil, errNoRaw
	}
	p, err := e.openSYNPool(kind)
	if err == nil || errors.Is(err, errNoRaw) {
		e.pools[kind] = p
	}
	if err == nil {
		e.sweepLater()
	}
	return p, err
}

// age closes p if nobody has used it since the last time, and reports whether it is closed.
func (p *synPool) age() bool {
	p.mu.Lock()
	defer p.unlock()
	if p.closed {
		return true
	}
	if len(p.talks) > 0 || !p.unused {
		p.unused = true
		return false
	}
	e := p.e
	e.mu.Lock()
	delete(e.pools, p.kind)
	e.spare = append(e.spare, p.s.place)
	e.mu.Unlock()
	p.aged = true
	p.close()
	return true
}

func (e *engine) openSYNPool(kind sockKind) (_ *synPool, err error) {
	fd, err := openRaw(kind.v6)
	if err != nil {
		return nil, err
	}
	p := &synPool{e: e, kind: kind, s: &sock{fd: fd, kind: kind}, route: -1, talks: map[synKey]*synTalk{}, sources: map[netip.Addr]sourceAddr{}}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for range synPorts {
		hold, port, err := holdPort(kind.v6)
		if err != nil {
			return nil, err
		}
		p.holds, p.ports = append(p.holds, hold), append(p.ports, port)
	}
	if err = p.filter(); err == nil {
		err = kind.socket.prepareRaw(fd, kind.v6)
	}
	if err != nil {
		return nil, err
	}
	sockbuf.SetSend(fd, poolBuffer)
	sockbuf.SetReceive(fd, poolBuffer)
	e.place(p.s)
	p.s.pool = p
	return p, nil
}

func openRaw(v6 bool) (fd int, err error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPROTONOSUPPORT):
		return -1, fmt.Errorf("%w: %w", errNoRaw, err)
	case err != nil:
		return -1, localError{os.NewSyscallError("socket", err)}
	}
	return fd, nil
}

// holdPort binds a TCP socket to a port of all addresses, as that to send from is not
// known yet. The kernel, which knows of no connection there, answers a server's SYN with
// RST.
func holdPort(v6 bool) (fd int, port uint16, err error) {
	family, any := unix.AF_INET, netip.IPv4Unspecified()
	if v6 {
		family, any = unix.AF_INET6, netip.IPv6Unspecified()
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return -1, 0, localError{os.NewSyscallError("socket", err)}
	}
	if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(any, 0))); err != nil {
		_ = unix.Close(fd)
		return -1, 0, localError{os.NewSyscallError("bind", err)}
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, 0, localError{os.NewSyscallError("getsockname", err)}
	}
	return fd, sockPort(sa), nil
}

// close is called with the lock held, or when nobody knows of p yet.
func (p *synPool) close() {
	p.closed = true
	for _, fd := range append(p.holds, p.s.fd, p.route) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// filter has the kernel drop everything but segments with SYN or RST to the ports. A
// raw IPv4 socket sees the IP header, an IPv6 one does not.
func (p *synPool) filter() error {
	prog := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegX, Val: 0}}
	if !p.kind.v6 {
		prog[0] = bpf.LoadMemShift{Off: 0} // X = length of the IP header
	}
	prog = append(prog,
		bpf.LoadIndirect{Off: 13, Size: 1}, // flags
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: tcpSYN | tcpRST, SkipFalse: uint8(len(p.ports)) + 1},
		bpf.LoadIndirect{Off: 2, Size: 2}, // destination port
	)
	for i, port := range p.ports {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(port), SkipTrue: uint8(len(p.ports) - i)})
	}
	prog = append(prog, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: 1 << 16})
	if err := setFilter(p.s.fd, prog); err != nil {
		return localError{err}
	}
	return nil
}

// prepareRaw sets the options of s on a raw socket that will not be connected.
func (s Socket) prepareRaw(fd int, v6 bool) error {
	if err := s.setOptions(uintptr(fd), v6); err != nil {
		return localError{err}
	}
	if err := setRecvErr(fd, v6); err != nil {
		return localError{err}
	}
	if s.Source.IsValid() {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(s.Source.Unmap(), 0))); err != nil {
			return localError{os.NewSyscallError("bind", err)}
		}
	}
	return nil
}

// source returns the address from which target is reached.
func (p *synPool) source(target netip.Addr, now time.Time) (sourceAddr, error) {
	if src, ok := p.sources[target]; ok && now.Sub(src.at) < sourceTTL {
		return src, nil
	}
	src := sourceAddr{addr: p.kind.socket.Source.Unmap(), at: now}
	if !src.addr.IsValid() {
		var err error
		if src.addr, err = p.ask(target); err != nil {
			return src, err
		}
	}
	if p.kind.v6 {
		src.oob = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: src.addr.As16()})
	} else {
		src.oob = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: src.addr.As4()})
	}
	if len(p.sources) >= maxSources {
		clear(p.sources)
	}
	p.sources[target] = src
	return src, nil
}

// ask has the kernel look up a route: connecting a UDP socket sends nothing.
func (p *synPool) ask(target netip.Addr) (netip.Addr, error) {
	if p.route < 0 {
		family := unix.AF_INET
		if p.kind.v6 {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
		if err != nil {
			return netip.Addr{}, localError{os.NewSyscallError("socket", err)}
		}
		if err := p.kind.socket.setOptions(uintptr(fd), p.kind.v6); err != nil {
			_ = unix.Close(fd)
			return netip.Addr{}, localError{err}
		}
		p.route = fd
	}
	if err := unix.Connect(p.route, sockaddr(netip.AddrPortFrom(target, 9))); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	src, err := localAddr(p.route)
	if disconnect(p.route) != nil || target.IsLinkLocalUnicast() { // bound to the interface by now
		_ = unix.Close(p.route)
		p.route = -1
	}
	if err != nil {
		return netip.Addr{}, localError{err}
	}
	return src.WithZone(""), nil
}

// send sends a segment of t.
func (p *synPool) send(t *synTalk, seq uint32, flags byte, options ...byte) error {
	var err error
	for range 4 {
		var src sourceAddr
		if src, err = p.source(t.to.Addr(), time.Now()); err != nil {
			return err
		}
		p.segment = appendSegment(p.segment[:0], netip.AddrPortFrom(src.addr, t.port), t.to, seq, flags, options...)
		err = ignoringEINTR(func() error {
			_, err := unix.SendmsgN(p.s.fd, p.segment, src.oob, t.sa, 0)
			return err
		})
		switch {
		case err == nil:
			return nil
		case p.errors() > 0: // the error was that of another
		case errors.Is(err, unix.EINVAL): // the address to send from is gone
			delete(p.sources, t.to.Addr())
		case errors.Is(err, unix.ENOBUFS): // there may be room by now
		default:
			return err
		}
	}
	return err
}

// errors reads what ICMP errors have come, of many a part, and returns how many.
func (p *synPool) errors() (n int) {
	for ; n < maxSegments; n++ {
		got, oobn, _, from, err := unix.Recvmsg(p.s.fd, p.buf[:], p.oob[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return n
		}
		ports := p.buf[:got] // of the segment that it is about: ports and sequence number at least
		to := sockIP(from)
		errno := extendedErrno(p.oob[:oobn])
		if got < 8 || errno == 0 || !to.IsValid() {
			continue
		}
		key := synKey{netip.AddrPortFrom(to, binary.BigEndian.Uint16(ports[2:])), binary.BigEndian.Uint16(ports)}
		if t := p.talks[key]; t != nil && binary.BigEndian.Uint32(ports[4:]) == t.seq {
			t.sent = true
			p.end(t, errno)
		}
	}
	return n
}

// extendedErrno returns the number of a struct sock_extended_err (ip(7), IP_RECVERR).
func extendedErrno(oob []byte) syscall.Errno {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range msgs {
		v4 := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		v6 := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (v4 || v6) && len(m.Data) >= int(unsafe.Sizeof(unix.SockExtendedErr{})) {
			return syscall.Errno(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

// receiveAll reads what answers there are, of many a part, until that of t, if not nil,
// is among them.
func (p *synPool) receiveAll(t *synTalk) {
	for range maxSegments {
		if t != nil && p.talks[t.key()] != t || !p.receive() {
			return
		}
	}
}

// receive reads one answer; false: there is none, or no use in asking for more.
func (p *synPool) receive() bool {
	n, from, err := receiveFrom(p.s.fd, p.buf[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false
	case errors.Is(err, unix.EINTR):
		return true
	case err != nil:
		p.errors() // those that it tells of may have been read before
		errno, ok := errors.AsType[syscall.Errno](err)
		return ok && icmpErrno(errno)
	}
	if !p.kind.v6 {
		n = cutIPv4(p.buf[:n])
	}
	b := p.buf[:n]
	if n < tcpHeader {
		return true
	}
	t := p.talks[synKey{netip.AddrPortFrom(from, binary.BigEndian.Uint16(b)), binary.BigEndian.Uint16(b[2:])}]
	if t == nil {
		return true
	}
	switch open, refused := judgeSegment(b, netip.AddrPortFrom(netip.Addr{}, t.port), t.to, t.seq); {
	case refused:
		p.end(t, syscall.ECONNREFUSED)
	case open && !time.Now().Before(t.deadline):
		p.end(t, os.ErrDeadlineExceeded)
	case open:
		t.decide()
		p.end(t, nil) // before errors that come by now can end it
		// The kernel's own RST goes another way where there are options, or none.
		_ = p.send(t, t.seq+1, tcpRST)
	}
	return true
}

// end takes t out; tell tells when the lock is free.
func (p *synPool) end(t *synTalk, err error) {
	key := t.key()
	if p.talks[key] == t {
		delete(p.talks, key)
		p.ended = append(p.ended, synEnd{t, err})
	}
}

// unlock tells of what has ended, and leaves the lock.
func (p *synPool) unlock() {
	ended := p.ended
	p.ended = nil
	p.mu.Unlock()
	for _, e := range ended {
		p.e.leave(&e.t.wait)
		e.t.done(e.t.result(e.err))
	}
}

// ready is called by the engine when the poller has something.
func (p *synPool) ready() {
	p.mu.Lock()
	defer p.unlock()
	if p.closed {
		return
	}
	p.armed = false
	p.receiveAll(nil)
	p.errors()
	p.arm()
}

// arm has the poller tell of answers, as long as any is waited for.
func (p *synPool) arm() {
	if !p.armed && len(p.talks) > 0 {
		p.armed = p.e.awaitRaw(p.s) == nil
	}
}
