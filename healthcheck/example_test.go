package healthcheck_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

func ExampleMonitor() {
	up := make(chan healthcheck.Transition, 1)
	m, err := healthcheck.NewMonitor(&healthcheck.Config{
		OnTransition: func(t healthcheck.Transition) { up <- t },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// Any of the probers of healthcheck/probe, or one's own.
	p := healthchecktest.Script(healthcheck.Passed("as expected"))
	err = m.Set(healthcheck.Check{
		ID:       "web1",
		Target:   netip.MustParseAddrPort("192.0.2.1:80"),
		Prober:   p,
		Interval: 20 * time.Millisecond,
		Rise:     2,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	for range 2 {
		t := <-up
		fmt.Println(t.Check.ID, t.From, "→", t.To, t.To.Usable())
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// web1 enabled → testing false
	// web1 testing → active true
	// context canceled
}
