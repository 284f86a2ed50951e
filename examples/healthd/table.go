package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/term"
	"github.com/lbprim/lbprim/healthcheck"
)

// row is a check or a policy, as the table, the page and /status.json show it.
type row struct {
	Name    string            `json:"name"`
	Policy  bool              `json:"policy,omitempty"`
	Is      healthcheck.Truth `json:"is"`
	State   string            `json:"state"`
	Method  string            `json:"method,omitempty"`
	Target  string            `json:"target,omitempty"`
	Since   time.Time         `json:"since,omitzero"`
	Latency time.Duration     `json:"-"`
	Seconds float64           `json:"latencySeconds,omitempty"`
	Probes  uint64            `json:"probes,omitempty"`
	Failed  uint64            `json:"failures,omitempty"`
	Expires time.Time         `json:"notAfter,omitzero"`
	Why     string            `json:"why,omitempty"`
}

// rows lists the policies and the checks, sorted by name.
func (d *daemon) rows() (rows []row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.policies.All() {
		x, _ := d.policies.Explain(p.Name, d.truth)
		rows = append(rows, row{Name: p.Name, Policy: true, Is: x.Truth, State: x.Truth.String(), Since: d.since[p.Name], Why: x.String()})
	}
	for _, name := range slices.Sorted(maps.Keys(d.conf.Checks)) {
		c := d.conf.Checks[name]
		s, _ := d.monitor.Status(name)
		r := row{
			Name: name, Is: s.State.Truth(), State: s.State.String(), Method: c.Method.String(), Target: c.Target.String(), Since: s.Since,
			Latency: s.Latency, Seconds: s.Latency.Seconds(), Probes: s.Probes, Failed: s.Failures, Expires: s.NotAfter, Why: s.Note,
		}
		if s.Err != nil {
			r.Why = s.Err.Error()
		}
		rows = append(rows, r)
	}
	return rows
}

// tableLines are the rows as a table. colour is for terminals.
func tableLines(rows []row, now time.Time, colour bool) (lines []string) {
	cells := [][]string{{"NAME", "IS", "STATE", "METHOD", "TARGET", "FOR", "LATENCY", "WHY"}}
	for _, r := range rows {
		age, latency := "", ""
		if !r.Since.IsZero() {
			age = now.Sub(r.Since).Round(time.Second).String()
		}
		if r.Latency > 0 {
			latency = r.Latency.Round(10 * time.Microsecond).String()
		}
		method := r.Method
		if r.Policy {
			method = "policy"
		}
		cells = append(cells, []string{r.Name, r.Is.String(), r.State, method, r.Target, age, latency, r.Why})
	}
	width := make([]int, len(cells[0]))
	for _, c := range cells {
		for i, text := range c {
			width[i] = max(width[i], len([]rune(text)))
		}
	}
	for i, c := range cells {
		line := ""
		for j, text := range c {
			line += text + strings.Repeat(" ", width[j]-len([]rune(text))+2)
		}
		line = strings.TrimRight(line, " ")
		if colour && i > 0 {
			line = paint(rows[i-1].Is) + line + "\x1b[0m"
		}
		lines = append(lines, line)
	}
	return lines
}

// printRows writes the rows as a table.
func printRows(w io.Writer, rows []row, now time.Time) error {
	_, err := fmt.Fprintln(w, strings.Join(tableLines(rows, now, false), "\n"))
	return err
}

func paint(t healthcheck.Truth) string {
	switch t {
	case healthcheck.IsUp:
		return "\x1b[32m"
	case healthcheck.IsDown:
		return "\x1b[31m"
	}
	return "\x1b[33m"
}

// lines keeps the last lines written to it.
type lines struct {
	mu   sync.Mutex
	most int
	kept []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, strings.TrimRight(string(p), "\n"))
	l.kept = l.kept[max(0, len(l.kept)-l.most):]
	return len(p), nil
}

func (l *lines) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.kept)
}

// show renews the table once a second until ctx is done: in place on a terminal, with the log below it; elsewhere there is a table whenever a
// check or a policy changes.
func (d *daemon) show(ctx context.Context, out io.Writer, log *lines) {
	screen := term.Screen{W: out}
	defer screen.Close()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	_, _, drawing := term.Size(out)
	for {
		_, _, _, changed := d.ask("")
		rows := d.rows()
		if drawing {
			changed = nil
			screen.Draw(slices.Concat(tableLines(rows, time.Now(), true), []string{""}, log.last()))
		} else if err := printRows(out, rows, time.Now()); err != nil {
			return
		} else {
			fmt.Fprintln(out)
		}
		tick := t.C
		if !drawing {
			tick = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick:
		}
	}
}

// onceCommand checks until all is decided.
func onceCommand(f *flag.FlagSet) cli.Run {
	timeout := f.Duration("timeout", 30*time.Second, "most `time` to take")
	plugin := f.Bool("plugin", false, "exit status as of monitoring plug-ins")
	return func(ctx context.Context, std cli.IO, args []string) error {
		return once(ctx, *timeout, *plugin, args, std.Out)
	}
}

func once(ctx context.Context, timeout time.Duration, plugin bool, rest []string, out io.Writer) error {
	d, err := newDaemon(rest[0], discard())
	if err != nil {
		return err
	}
	if err := d.apply(ctx, false); err != nil {
		return err
	}
	for _, name := range rest[1:] {
		if _, _, ok, _ := d.ask(name); !ok {
			return cli.Usage("%q: %s has no such check or policy", name, rest[0])
		}
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.monitor.Run(timed)
	}()
	// Asked at once, so that one short interval is enough.
	for name := range d.conf.Checks {
		_ = d.monitor.Trigger(name)
	}
	for timed.Err() == nil {
		_, _, _, changed := d.ask("")
		if d.settled(rest[1:]) {
			break
		}
		select {
		case <-timed.Done():
		case <-changed:
		}
	}
	all := d.sum(rest[1:])
	cancel()
	<-done
	if err := printRows(out, d.rows(), time.Now()); err != nil {
		return err
	}
	return exit(all, plugin)
}

// wanted are the names given, or all there are.
func (d *daemon) wanted(names []string) []string {
	if len(names) > 0 {
		return names
	}
	for _, r := range d.rows() {
		names = append(names, r.Name)
	}
	return names
}

// settled reports whether nothing that is wanted is unknown.
func (d *daemon) settled(names []string) bool {
	for _, name := range d.wanted(names) {
		if t, _, _, _ := d.ask(name); t == healthcheck.IsUnknown {
			return false
		}
	}
	return true
}

// sum is what all that is wanted comes to. Without names, the policies, if there are any, say what matters.
func (d *daemon) sum(names []string) healthcheck.Truth {
	if len(names) == 0 {
		d.mu.Lock()
		names = slices.Collect(maps.Keys(d.conf.Policies))
		d.mu.Unlock()
	}
	all := healthcheck.IsUp
	for _, name := range d.wanted(names) {
		t, _, _, _ := d.ask(name)
		all = all.And(t)
	}
	return all
}

func explainCommand(f *flag.FlagSet) cli.Run {
	plugin := f.Bool("plugin", false, "exit status as of monitoring plug-ins")
	return func(_ context.Context, std cli.IO, args []string) error { return explain(*plugin, args, std.Out) }
}

func explain(plugin bool, rest []string, out io.Writer) error {
	c, err := load(rest[0])
	if err != nil {
		return err
	}
	states := map[string]healthcheck.Truth{}
	for _, w := range rest[2:] {
		k, v, _ := strings.Cut(w, "=")
		var t healthcheck.Truth
		if err := t.UnmarshalText([]byte(v)); err != nil || c.Checks[k] == nil {
			return cli.Usage("%q: want a check of the file with up, down or unknown, such as web1=down", w)
		}
		states[k] = t
	}
	ps, err := c.compile(nil)
	if err != nil {
		return err
	}
	x, ok := ps.Explain(rest[1], func(name string) healthcheck.Truth { return states[name] })
	if !ok {
		return cli.Usage("%q: want one of %v", rest[1], slices.Sorted(maps.Keys(c.Policies)))
	}
	if _, err := fmt.Fprintln(out, x); err != nil {
		return err
	}
	return exit(x.Truth, plugin)
}
