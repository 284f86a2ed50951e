package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/rtnl"
)

// SetRoutes has the packets to these destinations come to the device, and those to no others that it has been given: in
// Config.Routes or here. It is the same for all queues of the interface, and must be called in the network namespace in which the
// device was opened.
func (d *Device) SetRoutes(routes ...netip.Prefix) error {
	for _, p := range routes {
		if !p.IsValid() {
			return fmt.Errorf("tun: route %v: want a network or an address", p)
		}
	}
	if d.isClosed() {
		return d.errClosed("set routes")
	}
	l := d.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range routes {
		if slices.Contains(l.routes, p.Masked()) {
			continue
		}
		if err := rtnl.ReplaceRoute(rtnl.Route{Dst: p.Masked(), Index: l.index}); err != nil {
			return fmt.Errorf("tun: %s: %w", l.name, err)
		}
		l.routes = append(l.routes, p.Masked())
	}
	var errs []error
	l.routes = slices.DeleteFunc(l.routes, func(old netip.Prefix) bool {
		if slices.ContainsFunc(routes, func(p netip.Prefix) bool { return p.Masked() == old }) {
			return false
		}
		err := rtnl.DeleteRoute(rtnl.Route{Dst: old, Index: l.index})
		if err != nil && !errors.Is(err, unix.ESRCH) { // somebody else has removed it
			errs = append(errs, fmt.Errorf("tun: %s: %w", l.name, err))
		}
		return true
	})
	return errors.Join(errs...)
}

// forgetDead removes rules of devices that are gone: one whose process was killed leaves its rules behind.
func forgetDead() error {
	rules, err := rtnl.Rules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Table&^0xffff != divertTable || r.Priority != divertPriority {
			continue
		}
		if gone, err := rtnl.Gone(int(r.Table - divertTable)); err == nil && gone {
			_ = rtnl.DeleteRule(r)
		}
	}
	return nil
}
