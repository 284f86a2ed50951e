package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// monitor is a Monitor in a process of its own.
func monitor(args []string) error {
	fs := flag.NewFlagSet("monitor", flag.ContinueOnError)
	kind := fs.String("kind", "tcp", "tcp, halfopen or http")
	targets := fs.Int("targets", 1000, "how many")
	interval := fs.Duration("interval", time.Second, "of each")
	port := fs.Int("port", 80, "of all")
	profile := fs.String("cpuprofile", "", "a file")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	p := map[string]healthcheck.Prober{"tcp": probe.TCP{}, "halfopen": probe.TCPHalfOpen{}, "http": probe.HTTP{}}[*kind]
	m, err := healthcheck.NewMonitor(nil)
	if err != nil {
		return err
	}
	checks := make([]healthcheck.Check, *targets)
	for i := range checks {
		a, err := netip.ParseAddr(address(i))
		if err != nil {
			return err
		}
		checks[i] = healthcheck.Check{ID: fmt.Sprint("s", i), Target: netip.AddrPortFrom(a, uint16(*port)), Prober: p, Interval: *interval}
	}
	if err := m.Set(checks...); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = m.Run(ctx) }()
	answer(0, func() int { return passes(m) })
	return nil
}

// passes counts the checks that passed: one that fails costs something else.
func passes(m *healthcheck.Monitor) (n int) {
	for _, st := range m.All() {
		n += int(st.Probes - st.Failures)
	}
	return n
}

// scale runs 100,000 targets at 5 s in this process.
func scale(d time.Duration) error {
	const n, interval, slot = 100_000, 5 * time.Second, 100 * time.Millisecond
	m, err := healthcheck.NewMonitor(nil)
	if err != nil {
		return err
	}
	begin := time.Now()
	slots := make([]atomic.Int64, (d+time.Minute)/slot)
	p := healthcheck.ProberFunc(func(context.Context, netip.AddrPort) healthcheck.Result {
		slots[time.Since(begin)/slot].Add(1)
		return healthcheck.Passed("")
	})
	before := memory()
	checks := make([]healthcheck.Check, n)
	for i := range checks {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		checks[i] = healthcheck.Check{ID: "node-" + a.String(), Target: netip.AddrPortFrom(a, 80), Prober: p, Interval: interval}
	}
	if err := m.Set(checks...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second+d)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	time.Sleep(10 * time.Second)
	from := int(time.Since(begin)/slot) + 1
	cpu0, t0 := ownCPU(), time.Now()
	probes0 := m.Stats().Probes
	time.Sleep(d - slot)
	cpu, took, s := ownCPU()-cpu0, time.Since(t0), m.Stats()
	to := int(time.Since(begin) / slot)
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	most := int64(0)
	for i := from; i < to; i++ {
		most = max(most, slots[i].Load())
	}
	fmt.Printf("%d targets every %v: %.0f probes per second, %.1f %% of one core, %.1f µs per probe\n", n, interval,
		float64(s.Probes-probes0)/took.Seconds(), 100*cpu.Seconds()/took.Seconds(), float64(cpu.Microseconds())/float64(s.Probes-probes0))
	fmt.Printf("fullest 100 ms slot %.2f × its share, latest probe %v late, %d workers\n", float64(most)/(n/float64(interval/slot)), s.MaxLate, s.Workers)
	fmt.Printf("%d bytes per target\n", (memory()-before)/n)
	runtime.KeepAlive(m)
	return nil
}

func memory() uint64 {
	var ms runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc + ms.StackInuse
}
