package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/intercept"
)

// A cluster of two: each knows the other's flows.
func ExampleCluster() {
	key := []byte("as random as can be, 16 bytes or more")
	there := make(chan struct{})
	var once sync.Once
	member := func(name string, join ...netip.AddrPort) *cluster.Cluster {
		c, err := cluster.New(&cluster.Config{
			Name: "site", Node: name, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Join: join, Keys: [][]byte{key},
			Topology: cluster.Serial, Members: []cluster.Peer{{Name: "lb1", Pair: "p"}, {Name: "lb2", Pair: "p"}},
			OnState: func(s intercept.ClusterState) { // for intercept.Engine.SetCluster
				if s == intercept.Steady {
					once.Do(func() { close(there) })
				}
			},
		})
		if err != nil {
			panic(err)
		}
		return c
	}
	lb1 := member("lb1")
	lb2 := member("lb2", lb1.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, c := range []*cluster.Cluster{lb1, lb2} {
		wg.Go(func() { _ = c.Run(ctx) })
	}
	<-there
	client, server := netip.MustParseAddrPort("198.51.100.7:4711"), netip.MustParseAddrPort("192.0.2.80:443")
	lb1.Announce(6, client, server, "sh1", "web")
	found := make(chan string)
	for node := ""; node == ""; {
		lb2.Find(6, server, client, func(node, _ string, _ bool) { go func() { found <- node }() })
		node = <-found
		if node != "" {
			fmt.Println(node)
		}
	}
	cancel()
	wg.Wait()
	// Output: sh1
}

// What all members must have alike is compared under names, and a difference told with both values.
func ExampleInterceptSettings() {
	settings, advisory := cluster.InterceptSettings(&intercept.Config{
		Nodes:    []intercept.Node{{Node: steering.Node{Name: "sh1", Addr: netip.MustParseAddrPort("192.0.2.9:7800")}}},
		Services: []intercept.Row{{Name: "dns", B: intercept.Endpoint{Ports: intercept.Port(53)}, Protocol: 17}},
	})
	fmt.Println(settings["intercept.node sh1"])
	fmt.Println(advisory["intercept.services 0000"])
	fmt.Println(cluster.Mismatch{Member: "lb2", Setting: "intercept.node sh1", Here: "lan", There: "wan"})
	// Output:
	// 192.0.2.9:7800 weight 0 capacity 0 sessions 0 lan
	// "dns" invalid Prefix any to invalid Prefix 53 protocol 17 pass-through false disabled false
	// mismatch: intercept.node sh1 is "lan" here and "wan" at lb2
}

// All faults of a configuration are reported at once.
func ExampleConfig() {
	_, err := cluster.New(&cluster.Config{
		Name: "site", Node: "lb1", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Topology: cluster.Quad, Members: []cluster.Peer{{Name: "lb1", Pair: "p"}},
	})
	fmt.Println(err)
	// Output:
	// steering: cluster.Config.Keys = none: want a key, or Insecure
	// steering: cluster.Config.Members = 1 of pair "p": want two of each pair
	// steering: cluster.Config.Members = 1, 1 of them in 1 pairs: want two pairs or more, and nobody else, with topology quad
}

// What a member knows of nodes reaches the others.
func ExampleCluster_SetNode() {
	lb1, err := cluster.New(&cluster.Config{Name: "site", Node: "lb1", Bind: netip.MustParseAddrPort("127.0.0.1:0"), Insecure: true})
	if err != nil {
		panic(err)
	}
	defer lb1.Close()
	err = lb1.SetNode(cluster.NodeReport{Node: "sh1", Up: true, Pressure: steering.High})
	fmt.Println(err)
	for _, r := range lb1.Nodes() {
		fmt.Println(r.Member, r.Node, r.Up, r.Pressure)
	}
	fmt.Println(lb1.Members(), lb1.State(), lb1.Stats().Refused)
	// Output:
	// <nil>
	// lb1 sh1 true high
	// [lb1] steady 0
}
