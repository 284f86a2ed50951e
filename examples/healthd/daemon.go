package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/examples/internal/term"
	"github.com/lbprim/lbprim/healthcheck"
)

// daemon checks and tells. Its methods are safe for concurrent use.
type daemon struct {
	file    string
	log     *slog.Logger
	monitor *healthcheck.Monitor

	setting sync.Mutex // held over changes of the configuration; never asked for by callbacks

	mu       sync.Mutex
	conf     *config
	policies *healthcheck.Policies
	truths   map[string]healthcheck.Truth // of checks and policies, as last told
	since    map[string]time.Time         // of policies
	changed  chan struct{}                // closed and replaced when a truth changes
	ears     map[string]*ear
	reloads  int
	refused  int
}

func newDaemon(name string, log *slog.Logger) (*daemon, error) {
	d := &daemon{
		file: name, log: log, truths: map[string]healthcheck.Truth{}, since: map[string]time.Time{},
		changed: make(chan struct{}), ears: map[string]*ear{}, policies: &healthcheck.Policies{}, conf: &config{},
	}
	var err error
	d.monitor, err = healthcheck.NewMonitor(&healthcheck.Config{OnTransition: d.transition, Logger: nil})
	return d, err
}

// apply reads the file and puts it in force, or changes nothing.
func (d *daemon) apply(ctx context.Context, listen bool) error {
	d.setting.Lock()
	defer d.setting.Unlock()
	c, err := load(d.file)
	if err != nil {
		return err
	}
	if !listen {
		c.Files = nil // keepalived is told by who runs on, and not by one look
	}
	ps, err := c.compile(nil)
	if err != nil {
		return err
	}
	checks, err := c.checks(ctx)
	if err != nil {
		return err
	}
	var fresh map[string]*ear
	if listen {
		if fresh, err = d.listen(ctx, c); err != nil {
			return err
		}
	}
	if err := d.monitor.Set(checks...); err != nil {
		for _, e := range fresh {
			e.close()
		}
		return err
	}
	var gone []*ear
	d.mu.Lock()
	d.conf, d.policies = c, ps
	maps.Copy(d.ears, fresh)
	for _, address := range slices.Sorted(maps.Keys(d.ears)) {
		if !slices.Contains(c.addresses(), address) {
			gone = append(gone, d.ears[address])
			delete(d.ears, address)
		}
	}
	for name := range d.truths {
		if c.Checks[name] == nil && !has(c.Policies, name) {
			delete(d.truths, name)
			delete(d.since, name)
		}
	}
	d.mu.Unlock()
	for _, e := range gone { // which may wait for answers, and these for the lock
		e.close()
	}
	d.tell()
	return nil
}

func has[V any](m map[string]V, name string) bool { _, ok := m[name]; return ok }

// transition is called for each change of a check.
func (d *daemon) transition(t healthcheck.Transition) {
	args := []any{"check", t.Check.ID, "target", t.Check.Target, "from", t.From, "to", t.To}
	if t.Status.Err != nil {
		args = append(args, "err", t.Status.Err)
	}
	d.log.Info("check changed", args...)
	d.tell()
}

// tell works out what changed and tells everybody.
func (d *daemon) tell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	any := false
	for name := range d.conf.Checks {
		t := d.truth(name)
		any = any || d.truths[name] != t
		d.truths[name] = t
	}
	for p := range d.policies.All() {
		why, _ := d.policies.Explain(p.Name, d.truth)
		if old, ok := d.truths[p.Name]; !ok || old != why.Truth {
			any = true
			d.truths[p.Name], d.since[p.Name] = why.Truth, now
			if ok || why.Truth != healthcheck.IsUnknown {
				d.log.Info("policy changed", "policy", p.Name, "is", why.Truth, "why", why.String())
			}
		}
	}
	for _, f := range d.conf.Files {
		if err := f.write(d.truths[f.Of]); err != nil {
			d.log.Error("the file is not written", "err", err)
		}
	}
	if any {
		close(d.changed)
		d.changed = make(chan struct{})
	}
}

// truth is what a check is now.
func (d *daemon) truth(name string) healthcheck.Truth {
	s, ok := d.monitor.Status(name)
	if !ok {
		return healthcheck.IsUnknown
	}
	return s.State.Truth()
}

// ask returns what a check or policy is, why, and a channel that is closed when anything changes.
func (d *daemon) ask(name string) (t healthcheck.Truth, why string, known bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed = d.changed
	if d.conf.Checks[name] != nil {
		s, _ := d.monitor.Status(name)
		if s.Err != nil {
			why = s.Err.Error()
		}
		return s.State.Truth(), why, true, changed
	}
	x, ok := d.policies.Explain(name, d.truth)
	return x.Truth, x.String(), ok, changed
}

// write puts the number into the file, in one step, if it is not there already. While nobody knows, a file that is
// there stays as it is: a restart must not move addresses.
func (f file) write(t healthcheck.Truth) error {
	old, err := os.ReadFile(f.Path)
	if err == nil && t == healthcheck.IsUnknown {
		return nil
	}
	text := fmt.Sprintf("%d\n", f.number(t))
	if err == nil && string(old) == text {
		return nil
	}
	tmp := f.Path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil { //nolint:gosec // others are to read it
		return err
	}
	return os.Rename(tmp, f.Path)
}

// reload is apply while running.
func (d *daemon) reload(ctx context.Context) {
	err := d.apply(ctx, true)
	d.mu.Lock()
	if d.reloads++; err != nil {
		d.refused++
	}
	d.mu.Unlock()
	if err != nil {
		d.log.Error("the old configuration stays in force", "err", err)
		return
	}
	d.log.Info("configuration reloaded", "file", d.file)
}

// run reads the file and checks until ctx is done.
func (d *daemon) run(ctx context.Context) error {
	watch := conf.NewWatcher(d.file) // before it is read
	defer watch.Close()
	if err := d.apply(ctx, true); err != nil {
		return err
	}
	return d.serve(ctx, watch)
}

// serve checks until ctx is done.
func (d *daemon) serve(ctx context.Context, watch *conf.Watcher) error {
	d.log.Info("checking", "file", d.file, "checks", len(d.conf.Checks), "policies", len(d.conf.Policies))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer d.close()
	wg.Go(func() { watch.Run(ctx, func() { d.reload(ctx) }) })
	wg.Go(func() { d.names(ctx) })
	err := d.monitor.Run(ctx)
	if errors.Is(err, context.Canceled) {
		d.log.Info("stopped")
		return nil
	}
	return err
}

// names looks names up again once a minute.
func (d *daemon) names(ctx context.Context) {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := d.lookUp(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("names are not looked up", "err", err)
		}
	}
}

func (d *daemon) lookUp(ctx context.Context) error {
	d.setting.Lock()
	defer d.setting.Unlock()
	checks, err := d.conf.checks(ctx) // conf changes only under setting
	if err != nil {
		return err
	}
	return d.monitor.Set(checks...)
}

func (d *daemon) close() {
	d.mu.Lock()
	ears := d.ears
	d.ears = map[string]*ear{}
	d.mu.Unlock()
	for _, e := range ears {
		e.close()
	}
}

func runCommand(f *flag.FlagSet) cli.Run {
	asJSON := f.Bool("log-json", false, "log in JSON")
	table := f.Bool("table", false, "show a table: on a terminal one that renews itself, with the log below it, elsewhere one after every change")
	return func(ctx context.Context, std cli.IO, args []string) error {
		return runFile(ctx, args[0], *asJSON, *table, std.Out, std.Err)
	}
}

func runFile(ctx context.Context, file string, asJSON, table bool, out, errs io.Writer) error {
	var log *slog.Logger
	var last *lines
	_, _, drawing := term.Size(out)
	switch {
	case table && drawing:
		last = &lines{most: 8}
		log = slog.New(slog.NewTextHandler(last, nil))
		if asJSON {
			log = slog.New(slog.NewJSONHandler(last, nil))
		}
	case asJSON:
		log = slog.New(slog.NewJSONHandler(errs, nil))
	default:
		log = slog.New(slog.NewTextHandler(errs, nil))
	}
	d, err := newDaemon(file, log)
	if err != nil {
		return err
	}
	watch := conf.NewWatcher(file) // before it is read
	defer watch.Close()
	if err := d.apply(ctx, true); err != nil {
		return err
	}
	if table {
		shown, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { d.show(shown, out, last) })
		defer wg.Wait()
		defer cancel()
	}
	return d.serve(ctx, watch)
}
