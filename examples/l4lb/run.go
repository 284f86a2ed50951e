package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/examples/internal/sdnotify"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/policy"
)

// instance is a running balancer.
type instance struct {
	file     string
	watcher  *conf.Watcher
	log      *slog.Logger
	plane    *dataplane.Plane
	roster   *healthcheck.Roster
	advise   func(node string, said healthcheck.AgentReport) // the plane, of what agents say
	admin    *adminServer
	notify   sdnotify.Notifier
	telling  sync.Mutex
	stopping bool // has been told; telling is held
	started  time.Time
	follow   follower // tells the device about other virtual addresses
	quiet    silence  // of the kernel, about virtual addresses that come to packet sockets

	mu          sync.Mutex
	exporting   *exporting // of flows, nil without
	conf        *config
	pools       *pools
	table       *policy.Table[*dataplane.Service]
	wishes      wishes
	draining    bool
	loaded      time.Time
	reloads     uint64
	refused     uint64
	reloadError string
}

// follower brings the packets to these destinations here, and those to no others.
type follower func(routed []netip.Prefix) error

// runOptions are what the command line says.
type runOptions struct {
	noSetup bool
	ready   func(*instance) // for tests
}

// run balances until ctx is done.
func run(ctx context.Context, file string, log *slog.Logger, opt runOptions) (err error) {
	watcher := conf.NewWatcher(file) // before the file is read, so that no change of it is missed
	defer watcher.Close()
	c, err := load(file)
	if err != nil {
		return err
	}
	in := &instance{file: file, watcher: watcher, log: log, conf: c, pools: newPools(nil), notify: sdnotify.New(), started: time.Now(), loaded: time.Now(), wishes: wishes{}}
	saved := in.readState()
	if saved != nil {
		in.wishes = saved.Wishes
		in.wishes.prune(c)
	}
	if in.table, err = c.compile(in.pools, nil, in.wishes); err != nil {
		return err
	}
	// The socket comes first: it keeps a second instance from taking the first one's device and routes away.
	if in.admin, err = openAdmin(c.Admin, log, in.handler()); err != nil {
		return err
	}
	defer in.admin.close()
	if c.Device.Type == afpacketDevice && !opt.noSetup {
		defer in.quiet.Close()
		if err := in.quiet.set(c.routed()); errors.Is(err, errPermission) {
			return fmt.Errorf("%w; fix: run it as root, or with the capabilities CAP_NET_ADMIN and CAP_NET_RAW", err)
		} else if err != nil {
			return err
		}
	}
	if err := c.preflight(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	background := func(what string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	cfg := dataplane.Config{
		Policies: in.table, MaxSessions: c.Sessions, MaxAssociations: c.Associations, Foreign: c.Foreign, PingNodes: c.PingNodes, Addrs: c.Device.Addresses, Logger: log,
	}
	closers, err := in.open(opt, background, &cfg)
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
	if err := in.newRoster(healthcheck.Config{Logger: log}); err != nil {
		return err
	}
	if err := in.roster.Set(c.setup()); err != nil {
		return err
	}
	if in.exporting, err = c.Flows.open(); err != nil {
		return err
	}
	defer func() { in.exporting.close() }()
	if err := in.plane.SetFlowExport(in.exporting.config()); err != nil {
		return err
	}
	in.restore(saved)
	background("health checks", in.roster.Run)
	background("admin", in.admin.run)
	background("state", in.keepState)
	background("pressure", in.press)
	log.Info("balancing", "file", file, "services", len(c.Services), "farms", len(c.Farms), "admin", c.Admin.socket(), "version", version())
	in.tell(sdnotify.Ready, in.statusLine())
	background("watchdog", in.watchdog)
	background("reload", in.watch) // which tells of a reload, never before the start
	if opt.ready != nil {
		opt.ready(in)
	}
	err = in.plane.Run(ctx)
	in.tell(sdnotify.Stopping)
	cancel(nil)
	wg.Wait()
	in.writeState()
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// tell tells the service manager, if there is one: one thing after another, and nothing once the end is told.
func (in *instance) tell(states ...string) {
	in.telling.Lock()
	defer in.telling.Unlock()
	if in.stopping {
		return
	}
	in.stopping = slices.Contains(states, sdnotify.Stopping)
	if err := in.notify.Send(states...); err != nil {
		in.log.Warn("service manager not told", "err", err)
	}
}

// watchdog tells the service manager that the workers answer.
func (in *instance) watchdog(ctx context.Context) error {
	every := sdnotify.Interval() / 2
	if every <= 0 {
		return nil
	}
	return periodically(ctx, every, func() {
		in.plane.Stats() // takes the lock of every worker
		in.tell(sdnotify.Watchdog)
	})
}

// periodically calls f once in each interval until ctx is done, which is no error.
func periodically(ctx context.Context, every time.Duration, f func()) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			f()
		}
	}
}

// watch reads the file again on SIGHUP and whenever it has changed.
func (in *instance) watch(ctx context.Context) error {
	in.watcher.Run(ctx, func() {
		in.tell(sdnotify.Reloading())
		_ = in.reload() // it has been logged
		in.tell(sdnotify.Ready, in.statusLine())
	})
	return nil
}

// statusLine is what the service manager shows of the balancer.
func (in *instance) statusLine() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	line := fmt.Sprintf("STATUS=%d services, %d farms", len(in.conf.Services), len(in.conf.Farms))
	if in.reloadError != "" {
		line += "; the last reload was refused"
	}
	return line
}

// wish asks something of a node: nil is what the file says.
func (in *instance) wish(name string, want *adminState) (*nodeReply, error) {
	in.mu.Lock()
	c := in.conf
	fname, n, err := c.find(name)
	if err != nil {
		in.mu.Unlock()
		return nil, err
	}
	full := nodeName(fname, n.Name)
	if want == nil || *want == n.Admin {
		delete(in.wishes, full)
	} else {
		in.wishes[full] = wish{Want: *want, File: n.Admin}
	}
	err = in.plane.SetNodes(in.pools.byFarm[fname], c.Farms[fname].nodes(fname, in.wishes)...)
	now := in.wishes.admin(full, n.Admin)
	in.mu.Unlock()
	if err != nil {
		return nil, err
	}
	in.log.Info("node asked", "node", full, "admin", now)
	for _, f := range in.status().Farms {
		for i := range f.Nodes {
			if nodeName(f.Name, f.Nodes[i].Name) == full {
				return &f.Nodes[i], nil
			}
		}
	}
	return nil, fmt.Errorf("%w %q", errNoNode, name)
}

// drain has the whole balancer take no new sessions.
func (in *instance) drain(on bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.draining = on
	in.plane.Drain(on)
	in.log.Info("balancer asked", "draining", on)
}

// hosts are single addresses; a device that answers ARP can do so for no network.
func hosts(routed []netip.Prefix) (addrs []netip.Addr, err error) {
	var errs []error
	for _, p := range routed {
		if !p.IsSingleIP() {
			errs = append(errs, fmt.Errorf("virtual network %v: afpacket answers ARP for single addresses only; use device type tun, or list the addresses", p))
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, errors.Join(errs...)
}

// background runs something beside the packets until the context is done.
type background func(what string, f func(context.Context) error)
