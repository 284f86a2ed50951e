package tun

import (
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/rtnl"
)

const (
	divertTable    = 0x6c620000
	divertPriority = 30000 // before the main table's 32766, after the local table's 0
)

// divert sends what comes in by the named interfaces, unless it is for this host, to l.
// So does what this host sends from the addresses of its proxies.
func (l *link) divert(names []string, proxies []netip.Addr) (err error) {
	// The rules outlive the interface, so Close must find the namespace again.
	if l.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return &os.PathError{Op: "open", Path: "/proc/thread-self/ns/net", Err: err}
	}
	if err := forgetDead(); err != nil {
		return err
	}
	table := uint32(divertTable + l.index)
	for _, dst := range []netip.Prefix{
		netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		netip.PrefixFrom(netip.IPv6Unspecified(), 0),
	} {
		err := rtnl.ReplaceRoute(rtnl.Route{Dst: dst, Index: l.index, Table: table})
		if dst.Addr().Is6() && rtnl.NoFamily(err) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
	}
	for _, a := range proxies {
		r := rtnl.Rule{In: "lo", From: a.Unmap(), Table: table, Priority: divertPriority}
		l.rules = append(l.rules, r)
		if err := rtnl.AddRule(r); err != nil {
			return err
		}
	}
	for _, name := range names {
		// A rule may name an interface that does not exist yet; here that is most likely a typing error.
		if _, err := rtnl.Index(name); err != nil {
			return err
		}
		r := rtnl.Rule{In: name, Table: table, Priority: divertPriority}
		l.rules = append(l.rules, r) // first, so that half a rule is removed too
		if err := rtnl.AddRule(r); err != nil {
			return err
		}
	}
	return nil
}

// release is called by each queue when it closes; the last one tidies up.
func (l *link) release() {
	if l.queues.Add(-1) > 0 || l.ns < 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A thread of its own that dies in the device's namespace, wherever the caller is.
		runtime.LockOSThread()
		if unix.Setns(l.ns, unix.CLONE_NEWNET) == nil || sameNamespace(l.ns) {
			for _, r := range l.rules {
				_ = rtnl.DeleteRule(r)
			}
		}
	}()
	<-done
	unix.Close(l.ns)
	l.ns = -1
}

// sameNamespace covers a process that may not call setns, but never left.
func sameNamespace(fd int) bool {
	var a, b unix.Stat_t
	return unix.Fstat(fd, &a) == nil && unix.Stat("/proc/thread-self/ns/net", &b) == nil && a.Ino == b.Ino && a.Dev == b.Dev
}
