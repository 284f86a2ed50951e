// Command probe uses package healthcheck/probe, and with it the monitor of package healthcheck.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

func main() {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	ctx, cancel := context.WithCancel(context.Background())
	up := make(chan healthcheck.Transition, 8)
	monitor, err := healthcheck.NewMonitor(&healthcheck.Config{OnTransition: func(t healthcheck.Transition) { up <- t }})
	if err != nil {
		log.Fatal(err)
	}
	target := netip.MustParseAddrPort(server.Addr().String())
	if err := monitor.Store(healthcheck.Check{ID: "web1", Target: target, Prober: probe.TCP{}}); err != nil {
		log.Fatal(err)
	}
	if err := monitor.Trigger("web1"); err != nil { // now, not at its place in the first interval
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- monitor.Run(ctx) }()
	t := <-up
	fmt.Println("probe:", t.Check.ID, t.To)
	cancel()
	<-done
}
