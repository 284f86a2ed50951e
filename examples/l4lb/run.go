package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/afpacket"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/healthcheck"
)

// instance is a running balancer.
type instance struct {
	file    string
	log     *slog.Logger
	plane   *dataplane.Plane
	monitor *healthcheck.Monitor
	vips    interface{ SetVIPs(...netip.Addr) error } // nil: TUN

	mu    sync.Mutex
	conf  *config
	pools *pools
}

// run balances until ctx is done.
func run(ctx context.Context, file string, log *slog.Logger, ready func(*instance)) error {
	c, err := load(file)
	if err != nil {
		return err
	}
	in := &instance{file: file, log: log, conf: c, pools: newPools(nil)}
	table, err := c.compile(in.pools)
	if err != nil {
		return err
	}
	checks, err := c.checks()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	cfg := dataplane.Config{Policies: table, MaxSessions: c.Sessions, MaxAssociations: c.Associations, Foreign: c.Foreign, Logger: log}
	closers, err := in.open(ctx, &wg, cancel, &cfg)
	defer func() {
		for _, d := range closers {
			d.Close()
		}
	}()
	if err != nil {
		return err
	}
	if in.plane, err = dataplane.New(&cfg); err != nil {
		return err
	}
	defer in.plane.Close()
	if in.monitor, err = healthcheck.NewMonitor(&healthcheck.Config{OnTransition: in.plane.ApplyHealth(), Logger: log}); err != nil {
		return err
	}
	if err := in.monitor.Set(checks...); err != nil {
		return err
	}
	wg.Go(func() {
		if err := in.monitor.Run(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	wg.Go(func() { in.reloads(ctx) })
	log.Info("balancing", "file", file, "services", len(c.Services), "farms", len(c.Farms))
	if ready != nil {
		ready(in)
	}
	err = in.plane.Run(ctx)
	cancel(nil)
	wg.Wait()
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// open opens the device and completes cfg for it.
func (in *instance) open(ctx context.Context, wg *sync.WaitGroup, cancel context.CancelCauseFunc, cfg *dataplane.Config) (opened []io.Closer, err error) {
	c := in.conf
	vips := c.vips()
	if c.Device.Type == tunDevice {
		t := tun.Config{Name: c.Device.Name, MTU: c.Device.MTU, Routes: vips, Divert: c.Device.Interfaces, QueueLen: 5000}
		if err := tun.Preflight(&t); err != nil {
			return nil, err
		}
		queues, err := tun.OpenQueues(&t, max(1, c.Device.Queues))
		for _, q := range queues {
			opened = append(opened, q)
			cfg.Devices = append(cfg.Devices, q)
		}
		return opened, err
	}
	addrs, err := hosts(vips)
	if err != nil {
		return nil, err
	}
	if err := afpacket.Preflight(c.Device.Interfaces, addrs); err != nil {
		return nil, err
	}
	queues, err := afpacket.OpenQueues(&afpacket.Config{Interfaces: c.Device.Interfaces}, max(1, c.Device.Queues))
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
	wg.Go(func() {
		if err := hops.Run(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	cfg.NextHop = func(dst netip.Addr) (dataplane.Hop, bool) {
		h, ok := hops.Lookup(dst)
		return dataplane.Hop(h), ok
	}
	in.vips = queues[0] // and of all others
	return opened, in.vips.SetVIPs(addrs...)
}

// vips lists the virtual addresses of all services that are not disabled.
func (c *config) vips() (vips []netip.Prefix) {
	seen := map[netip.Prefix]bool{}
	for _, s := range c.Services {
		p := s.VIP.Prefix
		if !p.IsValid() {
			p = s.Match.Dst
		}
		if p = p.Masked(); !s.Disabled && !seen[p] {
			seen[p] = true
			vips = append(vips, p)
		}
	}
	return vips
}

// hosts are single addresses; a device that answers ARP can do so for no network.
func hosts(vips []netip.Prefix) (addrs []netip.Addr, err error) {
	var errs []error
	for _, p := range vips {
		if !p.IsSingleIP() {
			errs = append(errs, fmt.Errorf("virtual network %v: afpacket answers ARP for single addresses only; use device type tun, or list the addresses", p))
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, errors.Join(errs...)
}

// reloads reads the file again on SIGHUP and whenever it has changed.
func (in *instance) reloads(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	last := stamp(in.file)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-t.C:
			if s := stamp(in.file); s == last || s == (fileStamp{}) {
				continue
			}
		}
		last = stamp(in.file)
		if err := in.reload(ctx); err != nil {
			in.log.Error("the old configuration stays in force", "err", err)
		} else {
			in.log.Info("configuration reloaded", "file", in.file)
		}
	}
}

type fileStamp struct {
	at   time.Time
	size int64
}

func stamp(file string) fileStamp {
	st, err := os.Stat(file)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{st.ModTime(), st.Size()}
}

// reload puts the file in force without disturbing a session, or changes nothing.
func (in *instance) reload(ctx context.Context) error {
	c, err := load(in.file)
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	old := in.conf
	if !sameDevice(old, c) {
		return errors.New("device, sessions, associations and foreign cannot change while running; restart for that")
	}
	vips := c.vips()
	if in.vips == nil {
		if fmt.Sprint(old.vips()) != fmt.Sprint(vips) {
			return errors.New("the virtual addresses of a TUN device cannot change while running; restart for that")
		}
	}
	checks, err := c.checks()
	if err != nil {
		return err
	}
	// Nodes first, so that new policies meet new nodes; a farm that is gone loses its pool last.
	next := newPools(in.pools.ids)
	for name, fm := range c.Farms {
		pool := in.pools.byFarm[name]
		if pool == nil {
			continue
		}
		if was := old.Farms[name]; was.Metric != fm.Metric || was.SlowStart != fm.SlowStart || was.Recovery != fm.Recovery || (was.Check == nil) != (fm.Check == nil) {
			if _, err := pool.Reconfigure(fm.config(in.pools.ids), fm.nodes(name)...); err != nil {
				return fmt.Errorf("farm %s: %w", name, err)
			}
		}
		if err := in.plane.SetNodes(pool, fm.nodes(name)...); err != nil {
			return fmt.Errorf("farm %s: %w", name, err)
		}
		next.byFarm[name] = pool
	}
	table, err := c.compile(next)
	if err != nil {
		return err
	}
	if err := in.plane.Apply(table); err != nil {
		return err
	}
	if in.vips != nil {
		addrs, err := hosts(vips)
		if err != nil {
			return err
		}
		if err := in.vips.SetVIPs(addrs...); err != nil {
			return err
		}
	}
	in.conf, in.pools = c, next
	return in.monitor.Set(checks...)
}

func sameDevice(a, b *config) bool {
	return fmt.Sprint(a.Device, a.Sessions, a.Associations, a.Foreign) == fmt.Sprint(b.Device, b.Sessions, b.Associations, b.Foreign)
}
