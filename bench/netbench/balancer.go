package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/afpacket"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// balancer is the program under test: lbprim on a device, web connections in turn, bulk ones by the client's address.
func balancer(args []string) error {
	f := flag.NewFlagSet("balancer", flag.ContinueOnError)
	device := f.String("device", "tun", "tun or afpacket")
	address := f.String("vip", "", "virtual address")
	servers := f.String("servers", "", "servers' addresses")
	delay := f.String("delay", "", "have servers chosen by what clients say: first or overwrite, of HTTP requests")
	noRing := f.Bool("no-ring", false, "have frames read from interfaces by system calls")
	profile := f.String("cpuprofile", "", "file for a CPU profile")
	stats := f.Bool("stats", false, "print counters at the end")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *profile != "" {
		w, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer w.Close()
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	addr, err := netip.ParseAddr(*address)
	if err != nil {
		return err
	}
	ids := &steering.IDs{}
	var rules []policy.Rule[*dataplane.Service]
	for _, s := range []struct {
		name     string
		port     uint16
		protocol uint8
		metric   steering.Metric
	}{{"web", 80, 6, steering.RoundRobin}, {"secure", 443, 6, steering.RoundRobin}, {"idle", 81, 6, steering.RoundRobin}, {"bulk", 5201, 6, steering.Hash}, {"datagrams", 5201, 17, steering.Hash}} {
		var nodes []steering.Node
		for i, a := range strings.Split(*servers, ",") {
			ip, err := netip.ParseAddr(a)
			if err != nil {
				return err
			}
			nodes = append(nodes, steering.Node{Name: fmt.Sprintf("%s-%d", s.name, i), Addr: netip.AddrPortFrom(ip, s.port)})
		}
		pool, err := steering.NewPool(&steering.Config{Metric: s.metric, IDs: ids}, nodes...)
		if err != nil {
			return err
		}
		service := &dataplane.Service{Name: s.name, Pool: pool}
		if *delay != "" && s.protocol == 6 && s.name != "idle" {
			if service.Delay, err = delayOf(*delay, s.name, pool); err != nil {
				return err
			}
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{
			Name:  s.name,
			Match: policy.Match{Dst: netip.PrefixFrom(addr, addr.BitLen()), Protocol: policy.ProtocolNumber(s.protocol), DstPort: policy.Port(s.port)},
			Value: service,
		})
	}
	policies, err := policy.Compile(nil, rules...)
	if err != nil {
		return err
	}
	cfg := dataplane.Config{Policies: policies, MaxSessions: 1 << 20}
	switch *device {
	case "tun":
		dev, err := tun.Open(&tun.Config{Routes: []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}, Divert: []string{"e1", "e2"}, QueueLen: 5000})
		if err != nil {
			return err
		}
		cfg.Devices = append(cfg.Devices, dev)
		defer func() {
			if *stats {
				fmt.Fprintf(os.Stderr, "%+v\n", dev.Stats())
			}
		}()
	case "afpacket":
		names := []string{"c0", "e1", "e2"}
		if err := afpacket.Preflight(names, []netip.Addr{addr}); err != nil {
			return err
		}
		dev, err := afpacket.Open(&afpacket.Config{Interfaces: names, NoRing: *noRing})
		if err != nil {
			return err
		}
		if err := dev.SetVIPs(addr); err != nil {
			return err
		}
		hops, err := afpacket.NewHops()
		if err != nil {
			return err
		}
		go func() {
			if err := hops.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				fmt.Fprintln(os.Stderr, "netbench balancer:", err)
			}
		}()
		cfg.NextHop = func(dst netip.Addr) (dataplane.Hop, bool) {
			h, ok := hops.Lookup(dst)
			return dataplane.Hop(h), ok
		}
		cfg.Devices = append(cfg.Devices, dev)
		defer func() {
			if *stats {
				fmt.Fprintf(os.Stderr, "%+v\n", dev.Stats())
			}
		}()
	default:
		return fmt.Errorf("-device: %q: want tun or afpacket", *device)
	}
	plane, err := dataplane.New(&cfg)
	if err != nil {
		return err
	}
	defer plane.Close()
	return plane.Run(ctx)
}
