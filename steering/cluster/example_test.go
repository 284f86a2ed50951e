package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
)

// nothing is a table without entries; clienttable.Feed and sslpersist.Feed are real ones.
type nothing struct{}

func (nothing) LastSeq() uint64 { return 0 }
func (nothing) AppendChanges(b []byte, after uint64, _ int) ([]byte, uint64, error) {
	return b, after, nil
}
func (nothing) Apply([]byte) error        { return nil }
func (nothing) Snapshot(io.Writer) error  { return nil }
func (nothing) Restore(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }

// A pair of balancers: each knows that the other is there, what it has otherwise, what it reports of nodes, and which node it gave a flow to.
func Example() {
	pair := []cluster.Peer{{Name: "lb1", Pair: "dc1"}, {Name: "lb2", Pair: "dc1"}}
	start := func(name, color string, join ...netip.AddrPort) (*cluster.Cluster, func()) {
		c, err := cluster.New(&cluster.Config{
			Name: "example", Node: name, Bind: netip.MustParseAddrPort("127.0.0.1:0"), Join: join, Topology: cluster.Serial, Members: pair,
			Keys: [][]byte{bytes.Repeat([]byte{7}, 32)}, Settings: map[string]string{"color": color},
			Replicas: map[string]cluster.Replica{"nothing": nothing{}},
		})
		if err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = c.Run(ctx) }()
		return c, func() { cancel(); <-done }
	}
	until := func(ok func() bool) {
		for end := time.Now().Add(time.Minute); !ok() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	one, stop := start("lb1", "red")
	defer stop()
	two, stop2 := start("lb2", "blue", one.Addr())
	defer stop2()
	until(func() bool { return len(one.Members()) == 2 && len(two.Members()) == 2 })
	fmt.Println(one.Members(), one.State())

	until(func() bool { return len(one.Mismatches()) > 0 })
	for _, m := range one.Mismatches() {
		var x cluster.Mismatch = m //nolint:staticcheck // the name of the type is what is shown
		fmt.Println(x.Member, "has", x.Setting, x.There, "instead of", x.Here)
	}

	if err := two.SetNode(cluster.NodeReport{Node: "web1", Up: true, Pressure: steering.High}); err != nil {
		panic(err)
	}
	until(func() bool { return len(one.Nodes()) > 0 })
	for _, r := range one.Nodes() {
		var report cluster.MemberReport = r //nolint:staticcheck // the name of the type is what is shown
		fmt.Println(report.Member, "says of", report.Node, "up:", report.Up, "pressure:", report.Pressure)
	}

	client, server := netip.MustParseAddrPort("192.0.2.9:40000"), netip.MustParseAddrPort("198.51.100.1:80")
	one.Announce(6, client, server, "web1", "")
	found := make(chan string, 1)
	until(func() bool {
		two.Find(6, client, server, func(node, _ string, ok bool) {
			if ok {
				select {
				case found <- node:
				default:
				}
			}
		})
		return len(found) > 0
	})
	fmt.Println("the flow is at", <-found)
	var st cluster.Stats = two.Stats() //nolint:staticcheck // the name of the type is what is shown
	fmt.Println("refused:", st.Refused, "members:", slices.Sorted(slices.Values(two.Members())))
	// Output:
	// [lb1 lb2] steady
	// lb2 has color blue instead of red
	// lb2 says of web1 up: true pressure: high
	// the flow is at web1
	// refused: 0 members: [lb1 lb2]
}

// A cluster that opens its sockets otherwise than by the host: Network is what it needs.
func ExampleNetwork() {
	var n cluster.Network = loopback{}
	_, err := n.DialContext(context.Background(), "tcp", "192.0.2.1:1")
	fmt.Println(err)
	// Output: not on the loopback interface: 192.0.2.1:1
}
