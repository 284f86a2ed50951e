package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/rtnl"
)

// Namespace is a network namespace. It is safe for concurrent use.
type Namespace struct {
	file *os.File

	mu     sync.Mutex
	idle   []*thread
	closed bool
	cables int
}

// mostIdle is how many idle threads a Namespace keeps for the next Do.
const mostIdle = 4

// thread is an operating system thread that lives in the namespace.
type thread struct{ jobs chan job }

type job struct {
	run  func() error
	done chan error
}

var errExit = errors.New("netns: the function ended its goroutine")

// New makes a network namespace with its loopback interface up.
func New() (*Namespace, error) {
	made := make(chan error)
	n := &Namespace{}
	go func() {
		// Never unlocked: the thread dies with this goroutine, and nobody else gets it.
		runtime.LockOSThread()
		made <- n.unshare()
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("netns: new network namespace: %w", err)
	}
	return n, nil
}

func (n *Namespace) unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	lo, err := rtnl.Index("lo")
	if err == nil {
		err = rtnl.SetUp(lo, true)
	}
	if err != nil {
		f.Close()
		return err
	}
	// Without this an interface has no link-local address for its first second or two, and a router cannot
	// ask for neighbours. Where it is refused, hosts only start more slowly.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	n.file = f
	return nil
}

// Do calls f on a thread inside the namespace and waits for it. Sockets, devices and
// requests to the kernel that f makes there belong to the namespace for ever; they can be
// used from anywhere. Goroutines that f starts are outside.
func (n *Namespace) Do(f func() error) error {
	t, err := n.take()
	if err != nil {
		return err
	}
	j := job{run: f, done: make(chan error, 1)}
	t.jobs <- j
	return <-j.done
}

func (n *Namespace) take() (*thread, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fmt.Errorf("netns: %w", os.ErrClosed)
	}
	if last := len(n.idle) - 1; last >= 0 {
		t := n.idle[last]
		n.idle = n.idle[:last]
		return t, nil
	}
	t := &thread{jobs: make(chan job)}
	fd, err := n.dup()
	if err != nil {
		return nil, err
	}
	go n.serve(t, fd)
	return t, nil
}

// dup copies the descriptor, so that Close need not wait for those who use it; n.mu is held.
func (n *Namespace) dup() (fd int, err error) {
	fd, err = unix.FcntlInt(n.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("fcntl", err)
}

func (n *Namespace) use(f func(fd int) error) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return fmt.Errorf("netns: %w", os.ErrClosed)
	}
	fd, err := n.dup()
	n.mu.Unlock()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func (n *Namespace) serve(t *thread, fd int) {
	runtime.LockOSThread()
	err := unix.Setns(fd, unix.CLONE_NEWNET)
	unix.Close(fd)
	for j := range t.jobs {
		if err != nil {
			j.done <- fmt.Errorf("netns: enter: %w", os.NewSyscallError("setns", err))
			return
		}
		n.call(t, j)
	}
}

// call runs one job; the thread is idle again before the caller hears of it.
func (n *Namespace) call(t *thread, j job) {
	err := errExit // stays if f calls runtime.Goexit, as t.FailNow does
	defer func() {
		n.mu.Lock()
		if n.closed || len(n.idle) >= mostIdle || errors.Is(err, errExit) {
			close(t.jobs)
		} else {
			n.idle = append(n.idle, t)
		}
		n.mu.Unlock()
		j.done <- err
	}()
	err = j.run()
}

// Close lets go of the namespace. The kernel removes it when the last socket and
// device in it is closed.
func (n *Namespace) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	for _, t := range n.idle {
		close(t.jobs)
	}
	n.idle = nil
	return n.file.Close()
}

// Sysctl sets a kernel parameter of the namespace, such as net.ipv4.ip_forward.
func (n *Namespace) Sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	return n.Do(func() error {
		// Opened on this thread: /proc/sys/net shows the namespace of whoever opens it.
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("netns: set %s: %w", name, err)
		}
		defer f.Close()
		if _, err := f.WriteString(value); err != nil {
			return fmt.Errorf("netns: set %s to %q: %w", name, value, err)
		}
		return nil
	})
}

// DialContext opens a connection from the namespace. Address must be an address and port, no name.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	return n.DialWith(ctx, &net.Dialer{}, network, address)
}

// DialWith is DialContext with a Dialer, for a local address or other options.
func (n *Namespace) DialWith(ctx context.Context, d *net.Dialer, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() error {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen opens a listening socket in the namespace.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// ListenPacket opens a datagram socket in the namespace.
func (n *Namespace) ListenPacket(ctx context.Context, network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		c, err = new(net.ListenConfig).ListenPacket(ctx, network, address)
		return err
	})
	return c, err
}
