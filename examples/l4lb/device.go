package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/afpacket"
	"github.com/lbprim/lbprim/dataplane/tun"
)

// tunConfig is how the kernel is set up for the configuration.
func (c *config) tunConfig() *tun.Config {
	return &tun.Config{Name: c.Device.name(), MTU: c.Device.MTU, Routes: c.routed(), Divert: c.Device.Interfaces, QueueLen: 5000}
}

// preflight finds what would keep packets from arriving, with the command that mends it.
func (c *config) preflight() error {
	var errs []error
	if c.Device.Type == tunDevice {
		errs = append(errs, c.preflightVIPs(), tun.Preflight(c.tunConfig()))
		for _, name := range c.Device.Interfaces {
			if _, err := net.InterfaceByName(name); err != nil {
				errs = append(errs, fmt.Errorf("interface %q: %w; fix: device.interfaces wants names that ip link shows", name, err))
			}
		}
		return errors.Join(errs...)
	}
	addrs, err := hosts(c.routed())
	return errors.Join(err, afpacket.Preflight(c.Device.Interfaces, addrs))
}

// preflightVIPs finds addresses for which the kernel would answer itself.
func (c *config) preflightVIPs() error {
	var errs []error
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	routed := c.routed()
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err != nil {
				continue
			}
			a := p.Addr().Unmap()
			for _, v := range routed {
				if v.Contains(a) {
					errs = append(errs, fmt.Errorf("%v is an address of this host, whose kernel answers for it; fix: ip addr del %v dev %s", a, p, i.Name))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// open opens the device and completes cfg for it.
func (in *instance) open(opt runOptions, start background, cfg *dataplane.Config) (opened []io.Closer, err error) {
	if in.conf.Device.Type == tunDevice {
		return in.openTUN(opt, cfg)
	}
	return in.openPackets(opt, start, cfg)
}

func (in *instance) openTUN(opt runOptions, cfg *dataplane.Config) (opened []io.Closer, err error) {
	t := in.conf.tunConfig()
	if opt.noSetup {
		t.Routes, t.Divert = nil, nil
		in.log.Info("no routes and rules are set up; these commands do it:\n" + in.conf.setupCommands(false))
	}
	queues, err := tun.OpenQueues(t, max(1, in.conf.Device.Queues))
	if err != nil {
		return nil, explainTUN(err, t.Name)
	}
	for _, q := range queues {
		opened = append(opened, q)
		cfg.Devices = append(cfg.Devices, q)
	}
	in.follow = func(routed []netip.Prefix) error { return queues[0].SetRoutes(routed...) }
	if opt.noSetup {
		told := in.conf.routed()
		in.follow = func(routed []netip.Prefix) error {
			if more := difference(routed, told); len(more) > 0 {
				in.log.Warn("virtual addresses are new; these commands bring their packets here:\n" + routeCommands("replace", more, t.Name, ""))
			}
			told = routed
			return nil
		}
	}
	return opened, nil
}

// explainTUN says what to do about a device that cannot be opened.
func explainTUN(err error, name string) error {
	switch {
	case errors.Is(err, errNotExist):
		return fmt.Errorf("%w; fix: modprobe tun; in a container: --device /dev/net/tun", err)
	case errors.Is(err, errBusy):
		return fmt.Errorf("%w; fix: another program has %s, or it has another number of queues: stop that one, or set device.name", err, name)
	case errors.Is(err, errPermission):
		return fmt.Errorf("%w; fix: run it as root, or with the capabilities CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	return err
}

func (in *instance) openPackets(opt runOptions, start background, cfg *dataplane.Config) (opened []io.Closer, err error) {
	queues, err := afpacket.OpenQueues(&afpacket.Config{Interfaces: in.conf.Device.Interfaces}, max(1, in.conf.Device.Queues))
	if errors.Is(err, errPermission) {
		err = fmt.Errorf("%w; fix: run it as root, or with the capabilities CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		opened = append(opened, q)
		cfg.Devices = append(cfg.Devices, q)
	}
	hops, err := afpacket.NewHops()
	if err != nil {
		return opened, err
	}
	start("routes", func(ctx context.Context) error { return hops.Run(ctx) })
	cfg.NextHop = func(dst netip.Addr) (dataplane.Hop, bool) {
		h, ok := hops.Lookup(dst)
		return dataplane.Hop(h), ok
	}
	told := in.conf.routed()
	if opt.noSetup {
		in.log.Info("no routes are set up; these commands do it:\n" + in.conf.setupCommands(false))
	}
	in.follow = func(routed []netip.Prefix) error {
		addrs, err := hosts(routed)
		if err != nil {
			return err
		}
		if !opt.noSetup {
			if err := in.quiet.set(routed); err != nil {
				return err
			}
		} else if more := blackholeCommands("replace", difference(routed, told)); more != "" {
			in.log.Warn("virtual addresses are new; these commands keep the kernel silent about them:\n" + more)
		}
		told = routed
		return queues[0].SetVIPs(addrs...) // and of all others
	}
	return opened, in.follow(in.conf.routed())
}
