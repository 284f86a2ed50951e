// Healthcheck measures what a health check costs: CPU time per check of
// lbprim/healthcheck, HAProxy and keepalived, each checking the same local targets
// at the same interval.
//
//	cd bench && go run ./healthcheck              every mode, three rounds
//	cd bench && go run ./healthcheck -scale       100,000 targets at 5 s, lbprim alone; on a busy machine under chrt -f 1
//	cd bench && go run ./healthcheck -h           what can be chosen
//
// Rounds are interleaved and every figure is the median of its rounds. CPU time is
// that of the checking processes, user and system; the targets are a process of
// their own, and count the checks that reach them. A peer that is not installed is
// named and left out. keepalived wants the kernel's IPVS; where there is none, a
// library of two functions, built by cc and preloaded, answers in its place, which is
// not asked for a check.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

type options struct {
	modes    []string
	targets  int
	interval time.Duration
	seconds  time.Duration
	rounds   int
	alone    bool // in a network namespace of its own
}

var allModes = []string{"haproxy-tcp", "keepalived-tcp", "lbprim-tcp", "lbprim-halfopen", "haproxy-http", "keepalived-http", "lbprim-http"}

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "targets":
		err = serveTargets(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "monitor":
		err = monitor(os.Args[2:])
	default:
		err = compare(os.Args[1:])
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "healthcheck:", err)
		os.Exit(1)
	}
}

func compare(args []string) error {
	var o options
	fs := flag.NewFlagSet("healthcheck", flag.ContinueOnError)
	modes := fs.String("modes", strings.Join(allModes, ","), "what to measure")
	fs.IntVar(&o.targets, "targets", 1000, "how many targets, up to 60000")
	fs.DurationVar(&o.interval, "interval", time.Second, "between two checks of a target")
	fs.DurationVar(&o.seconds, "time", 8*time.Second, "how long to measure")
	fs.IntVar(&o.rounds, "rounds", 3, "how many rounds")
	big := fs.Bool("scale", false, "100,000 targets at 5 s with a prober that does nothing")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *big {
		return scale(o.seconds)
	}
	if o.targets < 1 || o.targets > 60000 || o.rounds < 1 || o.seconds < time.Second {
		return fmt.Errorf("-targets %d -rounds %d -time %v, want 1 to 60000, at least 1, at least 1s", o.targets, o.rounds, o.seconds)
	}
	o.modes = strings.Split(*modes, ",")
	for _, m := range o.modes {
		if !slices.Contains(allModes, m) {
			return fmt.Errorf("-modes: unknown mode %q, want some of %s", m, strings.Join(allModes, ","))
		}
	}
	if err := enterSpace(); err != nil {
		fmt.Printf("no network namespace of its own (%v): HAProxy's TCP checks are taken to be as many as configured\n", err)
	} else {
		o.alone = true
	}
	cost := map[string][]float64{}
	dropped := map[string]bool{}
	for round := range o.rounds {
		for _, m := range o.modes {
			if dropped[m] {
				continue
			}
			r, err := measure(m, &o)
			if err != nil {
				fmt.Printf("%-16s left out: %v\n", m, err)
				dropped[m] = true
				continue
			}
			fmt.Printf("round %d %-16s %6.1f µs CPU per check (%.0f checks per second)\n", round+1, m, r.micros, r.rate)
			cost[m] = append(cost[m], r.micros)
		}
	}
	fmt.Printf("\n%d targets every %v, median of %d rounds\n", o.targets, o.interval, o.rounds)
	for _, m := range o.modes {
		if len(cost[m]) == 0 {
			continue
		}
		line := fmt.Sprintf("%-16s %6.1f µs", m, median(cost[m]))
		kind := "tcp"
		if strings.HasSuffix(m, "-http") {
			kind = "http"
		}
		for _, peer := range []string{"haproxy-" + kind, "keepalived-" + kind} {
			if len(cost[peer]) > 0 && strings.HasPrefix(m, "lbprim") {
				line += fmt.Sprintf("  %.2f × %s", median(cost[m])/median(cost[peer]), peer)
			}
		}
		fmt.Println(line)
	}
	return nil
}

func median(xs []float64) float64 {
	xs = slices.Clone(xs)
	slices.Sort(xs)
	return xs[len(xs)/2]
}
