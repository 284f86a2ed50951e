package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/policy"
)

// instance is a running balancer.
type instance struct {
	file     string
	watch    *conf.Watcher
	log      *slog.Logger
	plane    *dataplane.Plane
	monitor  *healthcheck.Monitor
	speaker  *speaker
	networks []netip.Prefix
	poke     chan struct{} // has the announcements looked at again

	mu     sync.Mutex
	conf   *config
	pools  *pools
	table  *policy.Table[*dataplane.Service]
	ending bool
	routes map[netip.Prefix]*route
	told   map[netip.Prefix]string // what routers were told of each address
	why    map[netip.Prefix]string // what is said of each on the status page
}

// run balances and announces until ctx is done, then withdraws all and serves on for a while, which a second signal on hurry cuts short.
func run(ctx context.Context, hurry <-chan os.Signal, file string, log *slog.Logger) error {
	watch := conf.NewWatcher(file) // before it is read
	defer watch.Close()
	c, err := load(file)
	if err != nil {
		return err
	}
	in := &instance{
		file: file, watch: watch, log: log, conf: c, pools: newPools(nil), networks: c.networks(), poke: make(chan struct{}, 1),
		routes: map[netip.Prefix]*route{}, told: map[netip.Prefix]string{}, why: map[netip.Prefix]string{},
	}
	if in.table, err = c.compile(in.pools); err != nil {
		return err
	}
	t := tun.Config{Name: c.Device.Name, MTU: c.Device.MTU, Routes: in.networks, Divert: c.Device.Interfaces, QueueLen: 5000}
	if t.Name == "" {
		t.Name = "lb0"
	}
	if err := tun.Preflight(&t); err != nil {
		return err
	}
	queues, err := tun.OpenQueues(&t, max(1, c.Device.Queues))
	if err != nil {
		return err
	}
	cfg := dataplane.Config{Policies: in.table, Addrs: c.Source, Seed: c.Seed, MaxSessions: c.Sessions, Logger: log}
	for _, q := range queues {
		defer q.Close()
		cfg.Devices = append(cfg.Devices, q)
	}
	if len(c.Device.Interfaces) == 0 {
		cfg.Foreign = dataplane.Drop // or the kernel would send it to the device again and again
	}
	if in.plane, err = dataplane.New(&cfg); err != nil {
		return err
	}
	defer in.plane.Close()
	apply := in.plane.ApplyHealth()
	in.monitor, err = healthcheck.NewMonitor(&healthcheck.Config{Logger: log, OnTransition: func(tr healthcheck.Transition) {
		apply(tr)
		in.look()
	}})
	if err != nil {
		return err
	}
	if err := in.monitor.Set(c.checks()...); err != nil {
		return err
	}
	if in.speaker, err = startSpeaker(&c.BGP, log); err != nil {
		return err
	}
	defer in.speaker.close()
	if err := in.speaker.setPeers(c.BGP.Peers); err != nil {
		return err
	}
	return in.serve(ctx, hurry)
}

// serve runs the parts, and ends them in the order that loses nothing.
func (in *instance) serve(ctx context.Context, hurry <-chan os.Signal) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	part := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(work); err != nil && work.Err() == nil {
				stop(err)
			}
		})
	}
	part(in.monitor.Run)
	part(in.plane.Run)
	part(in.announcements)
	part(in.reloads)
	if a := in.conf.Status; a.IsValid() {
		part(func(ctx context.Context) error { return in.serveStatus(ctx, a) })
	}
	in.log.Info("balancing", "file", in.file, "vips", len(in.conf.VIPs), "routers", len(in.conf.BGP.Peers))
	select {
	case <-ctx.Done():
		in.withdrawAll()
		linger := or(in.conf.Linger, 5*time.Second)
		in.log.Info("withdrawn; serving what still comes", "for", linger)
		select {
		case <-time.After(linger):
		case <-hurry:
		case <-work.Done():
		}
	case <-work.Done():
		in.log.Error("giving up", "err", context.Cause(work))
	}
	// Routers are told before packets are no longer taken.
	in.speaker.close()
	err := context.Cause(work)
	stop(nil)
	return err
}

// look has the announcements looked at again.
func (in *instance) look() {
	select {
	case in.poke <- struct{}{}:
	default:
	}
}

// reloads reads the file again on SIGHUP and whenever it has changed.
func (in *instance) reloads(ctx context.Context) error {
	in.watch.Run(ctx, func() {
		if err := in.reload(); err != nil {
			in.log.Error("the old configuration stays in force", "err", err)
		} else {
			in.log.Info("configuration reloaded", "file", in.file)
		}
	})
	return nil
}

// serveStatus serves the status page until ctx is done.
func (in *instance) serveStatus(ctx context.Context, at netip.AddrPort) error {
	srv := &http.Server{Addr: at.String(), Handler: in.statusPage(), ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
