package dataplane_test

import (
	"context"
	"log"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// A balancer for two web servers behind eth1, checked by HTTP. It needs CAP_NET_ADMIN, and the servers' default route.
func Example() {
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	vip := netip.MustParsePrefix("192.0.2.80/32")
	nodes := []steering.Node{
		{Name: "web1", Addr: netip.MustParseAddrPort("10.0.0.11:8080"), Weight: 2},
		{Name: "web2", Addr: netip.MustParseAddrPort("10.0.0.12:8080"), Weight: 1},
	}
	pool, err := steering.NewPool(&steering.Config{Metric: steering.LeastConns, StartDown: true}, nodes...)
	must(err)
	policies, err := policy.Compile(nil, policy.Rule[*dataplane.Service]{
		Name:  "web",
		Match: policy.Match{Dst: vip, Protocol: policy.TCP, DstPort: policy.Port(80)},
		Value: &dataplane.Service{Name: "web", Pool: pool},
	})
	must(err)
	device, err := tun.Open(&tun.Config{Routes: []netip.Prefix{vip}, Divert: []string{"eth1"}})
	must(err)
	plane, err := dataplane.New(&dataplane.Config{Policies: policies, Devices: []dataplane.Device{device}})
	must(err)
	monitor, err := healthcheck.NewMonitor(&healthcheck.Config{OnTransition: plane.ApplyHealth()})
	must(err)
	for _, n := range nodes {
		must(monitor.Store(healthcheck.Check{ID: n.Name, Target: n.Addr, Prober: probe.HTTP{Path: "/health"}}))
	}
	go monitor.Run(ctx)
	must(plane.Run(ctx))
}
