// Netbench measures balancers side by side on one machine, in network namespaces: a client, the balancer, and
// two servers, joined by virtual Ethernet.
//
//	cd bench && go run ./netbench                     every mode, three rounds
//	cd bench && go run ./netbench -h                  what can be chosen
//	cd bench && go run ./netbench -base haproxy-delayed -modes haproxy-delayed,nginx-delayed,tun-first,tun-overwrite -measures tls,conns,requests,bulk
//	                                                  servers chosen by what clients say
//
// Rounds are interleaved and every figure is the median of its rounds, with the ratio to a chosen mode. It needs root, iperf3, wrk and nginx, and
// whichever peers are to be measured: haproxy, nftables, and the folder of the bare forwarders.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	modes    []string
	families []string
	measures []string
	rounds   int
	seconds  time.Duration
	pace     int // requests per second of the latency measures
	sessions int
	most     int // sessions, that the limit of open files lets a proxy have
	base     string
	bare     string
	profiles string
}

func main() {
	if part(os.Args[1:]) {
		return
	}
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, o, os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "netbench:", err)
		os.Exit(1)
	}
}

// part runs one of the programs that a measurement starts, if that is what is asked for.
func part(args []string) bool {
	if len(args) == 0 {
		return false
	}
	f, ok := map[string]func([]string) error{"balancer": balancer, "hold": hold}[args[0]]
	if !ok {
		return false
	}
	if err := f(args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "netbench %s: %v\n", args[0], err)
		os.Exit(1)
	}
	return true
}

func parse(args []string) (options, error) {
	var o options
	var m, x, families string
	usualModes, allModes := modeNames()
	usualMeasures, allMeasures := measureNames()
	f := flag.NewFlagSet("netbench", flag.ContinueOnError)
	f.StringVar(&m, "modes", strings.Join(usualModes, ","), "balancers to measure, of "+strings.Join(allModes, ","))
	f.StringVar(&x, "measures", strings.Join(usualMeasures, ","), "what to measure")
	f.StringVar(&families, "families", "4,6", "address families, 4 for IPv4 and 6 for IPv6")
	f.IntVar(&o.rounds, "rounds", 3, "rounds over all modes")
	f.DurationVar(&o.seconds, "each", 3*time.Second, "how long each measurement takes")
	f.IntVar(&o.pace, "pace", 0, "requests per second under which latency is measured, the same for every mode; 0 for half of what the base mode manages on this machine")
	f.IntVar(&o.sessions, "sessions", 100_000, "sessions that are open while memory is measured")
	f.StringVar(&o.base, "base", "haproxy", "the mode ratios refer to")
	f.StringVar(&o.bare, "bare", "../../shared/bench", "folder of the bare forwarders' module; their modes are left out where it is absent")
	f.StringVar(&o.profiles, "profiles", "", "folder for CPU profiles of this project's balancer, the last round's; its counters go to standard error")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "Netbench measures balancers side by side in network namespaces.")
		fmt.Fprintln(f.Output(), "\nFlags:")
		f.PrintDefaults()
		fmt.Fprintln(f.Output(), "\nMeasures:")
		for _, m := range slices.Concat(measures, delayedMeasures) {
			fmt.Fprintf(f.Output(), "  %-8s %s\n", m.name, m.what)
		}
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var faults []error
	choose := func(field, list string, known []string) (chosen []string) {
		for _, s := range strings.Split(list, ",") {
			if !slices.Contains(known, s) {
				faults = append(faults, fmt.Errorf("-%s: %q: want some of %s", field, s, strings.Join(known, ",")))
			}
			chosen = append(chosen, s)
		}
		return chosen
	}
	o.modes = choose("modes", m, allModes)
	o.measures = choose("measures", x, allMeasures)
	o.families = choose("families", families, []string{"4", "6"})
	if o.rounds < 1 {
		faults = append(faults, fmt.Errorf("-rounds: %d: want 1 or more", o.rounds))
	}
	if o.seconds < time.Second || o.seconds > time.Minute {
		faults = append(faults, fmt.Errorf("-each: %v: want 1s to 1m", o.seconds))
	}
	if modeByName(o.base) == nil {
		faults = append(faults, fmt.Errorf("-base: %q: want one of %s", o.base, strings.Join(allModes, ",")))
	}
	if o.pace < 0 {
		faults = append(faults, fmt.Errorf("-pace: %d: want requests per second, or 0", o.pace))
	}
	if o.sessions < 1 || o.sessions > 100_000 {
		faults = append(faults, fmt.Errorf("-sessions: %d: want 1 to 100000", o.sessions))
	}
	return o, errors.Join(faults...)
}

func run(ctx context.Context, o options, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("namespaces need root")
	}
	tmp, err := os.MkdirTemp("", "netbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if o.most, err = raiseFiles(o.sessions); err != nil {
		return err
	}
	if o.most < o.sessions && slices.Contains(o.measures, "memory") {
		fmt.Fprintf(os.Stderr, "memory of proxies is measured with %d sessions instead of %d, and that for all calculated (~): the limit of open files does for no more (ulimit -Hn)\n", o.most, o.sessions)
	}
	if o.pace == 0 && (slices.Contains(o.measures, "p50") || slices.Contains(o.measures, "p99")) {
		if o.pace, err = calibrate(ctx, o, tmp); err != nil {
			return fmt.Errorf("pace of %s: %w (-pace sets one)", o.base, err)
		}
	}
	results := newTable(o)
	var faults []error
	for round := range o.rounds {
		for _, r := range o.rows() {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.rounds, r)
			if err := one(ctx, o, tmp, r, results); err != nil {
				if ctx.Err() != nil { // what was measured is worth having
					return errors.Join(ctx.Err(), results.print(out))
				}
				var absent *absentError
				if errors.As(err, &absent) {
					results.skip(r.String(), absent.Error())
					continue
				}
				// The other modes' figures are worth having.
				faults = append(faults, fmt.Errorf("%s: %w", r, err))
				results.skip(r.String(), "failed: see below")
			}
		}
	}
	return errors.Join(append(faults, results.print(out))...)
}

// rows are the modes of one family, and then of the other.
func (o *options) rows() (rows []row) {
	for _, family := range o.families {
		for _, name := range o.modes {
			rows = append(rows, row{modeByName(name), networkByName(family)})
		}
	}
	return rows
}

// calibrate finds half of the rate of requests that the base mode manages here and now.
func calibrate(ctx context.Context, o options, tmp string) (pace int, err error) {
	l, err := newLab(ctx, tmp, networkByName(o.families[0]))
	if err != nil {
		return 0, err
	}
	defer l.close()
	addr, _, err := modeByName(o.base).start(l, o)
	if err != nil {
		return 0, err
	}
	if err := l.ready(ctx, addr); err != nil {
		return 0, err
	}
	// By the client that measures latency, as one that is busy itself would measure itself.
	times, took, err := clients(ctx, l, addr, o.seconds, 0)
	pace = int(float64(len(times)) / took.Seconds() / 2)
	fmt.Fprintf(os.Stderr, "latency is measured under %d requests per second, half of what %s manages\n", pace, o.base)
	return max(pace, 1), err
}

// one measures a mode in namespaces of its own, so that it inherits no socket, route or connection of another.
func one(ctx context.Context, o options, tmp string, r row, results *table) error {
	l, err := newLab(ctx, tmp, r.net)
	if err != nil {
		return err
	}
	defer l.close()
	addr, pid, err := r.mode.start(l, o)
	if err != nil {
		return err
	}
	l.pid, l.proxy = pid, r.mode.proxy
	if err := l.ready(ctx, addr); err != nil {
		return err
	}
	for _, name := range o.measures {
		m := measureByName(name)
		before := ticks(pid)
		l.calculated = false
		v, err := m.take(ctx, l, addr, o)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !errors.Is(err, errNoProcess) {
				fmt.Fprintf(os.Stderr, "  %s: %v\n", name, err)
				results.fail(r.String(), m)
			}
			continue
		}
		results.add(r.String(), m, v, float64(ticks(pid)-before)/100)
		if l.calculated {
			results.calculated[[2]string{r.String(), m.name}] = true
		}
	}
	return nil
}
