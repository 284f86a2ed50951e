package dataplane_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// What is going on, by session, service, node and reason.
func ExamplePlane_Sessions() {
	plane, err := serve(dataplane.Config{}, &dataplane.Service{Name: "web", Pool: twoNodes()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	process(plane, segment("198.51.100.7:40000", "192.0.2.80:80", 0x02, 1, 0)) // SYN
	process(plane, segment("198.51.100.7:40000", "192.0.2.80:22", 0x02, 1, 0)) // for which there is no service

	show := func(s dataplane.Session, in dataplane.Count) {
		fmt.Println(s.Client, "at", s.NodeName, s.Phase, in.Packets, "packet", in.Octets, "octets")
	}
	for s := range plane.Sessions() {
		show(s, s.In)
	}
	for name, t := range plane.Services() {
		var traffic dataplane.Traffic = t //nolint:staticcheck // the name of the type is what is shown
		fmt.Println(name, traffic.Sessions, "session", traffic.Refused, "refused")
	}
	for _, n := range plane.Nodes() {
		var node dataplane.NodeStats = n //nolint:staticcheck // the same
		fmt.Println(node.Name, node.In.Packets)
	}
	for reason, n := range plane.Drops() {
		fmt.Println("dropped:", reason, n, reason == dataplane.NoPolicy)
	}
	var st dataplane.Stats = plane.Stats() //nolint:staticcheck // the same
	fmt.Println(st.Read.Packets, "read", st.Written.Packets, "written", st.Sessions, "session now")
	fmt.Println(plane.KillSessions(func(s dataplane.Session) bool { return s.Client.Addr() == netip.MustParseAddr("198.51.100.7") }), "ended")
	// Output:
	// 198.51.100.7:40000 at web1 syn-sent 1 packet 40 octets
	// web 1 session 0 refused
	// web1 1
	// web2 0
	// dropped: no-policy 1 true
	// 2 read 1 written 1 session now
	// 1 ended
}

// Packets of Ethernet frames: NextHop has the addresses of the frame to a node.
func ExampleConfig() {
	plane, err := serve(dataplane.Config{
		Link:    dataplane.Link{Ethernet: true},
		Foreign: dataplane.Drop,
		NextHop: func(dst netip.Addr) (dataplane.Hop, bool) {
			return dataplane.Hop{Src: [6]byte{2, 0, 0, 0, 0, 1}, Dst: [6]byte{2, 0, 0, 0, 0, dst.As4()[3]}, MTU: 1500}, true
		},
	}, &dataplane.Service{Name: "web", Pool: twoNodes(), Forward: dataplane.DSR})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	frame := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x08, 0x00}, segment("198.51.100.7:40000", "192.0.2.80:80", 0x02, 1, 0)...)
	v, out := process(plane, frame)
	fmt.Printf("%v to %x from %x, still for %v\n", v, out[:6], out[6:12], netip.AddrFrom4([4]byte(out[14+16:])))
	v, _ = process(plane, append(frame[:14:14], segment("198.51.100.7:40000", "203.0.113.1:80", 0x02, 1, 0)...))
	fmt.Println(v, "as it is for no virtual address")
	// Output:
	// forwarded to 02000000000b from 020000000001, still for 192.0.2.80
	// dropped as it is for no virtual address
}

// A worker of one's own has its own buffers and counters; its Plane's tables are those of all.
func ExampleWorker() {
	plane, err := serve(dataplane.Config{}, &dataplane.Service{Name: "web", Pool: twoNodes()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	var w *dataplane.Worker = plane.NewWorker(dataplane.Link{}) //nolint:staticcheck // the name of the type is what is shown
	packet := segment("198.51.100.7:40000", "192.0.2.80:80", 0x02, 1, 0)
	buf := append(make([]byte, dataplane.ReadOffset), packet...)
	var v [1]dataplane.Verdict
	w.Process(time.Now(), [][]byte{buf}, []int{len(packet)}, dataplane.ReadOffset, v[:])
	_, known := plane.Session(6, netip.MustParseAddrPort("198.51.100.7:40000"), netip.MustParseAddrPort("192.0.2.80:80"))
	fmt.Println(v[0], known)
	// Output: forwarded true
}

// adapter is an Accelerator that tells what it is asked. One that forwards keeps counts of each flow.
type adapter struct {
	flows     map[clienttable.Flow]dataplane.Usage
	installed func(dataplane.Translation)
}

func (a adapter) Install(t dataplane.Translation) bool {
	a.installed(t)
	a.flows[t.Flow] = dataplane.Usage{}
	return true
}

func (a adapter) Usage(f clienttable.Flow) (dataplane.Usage, bool) { u, ok := a.flows[f]; return u, ok }

func (a adapter) Remove(f clienttable.Flow) dataplane.Usage {
	fmt.Println("remove", f)
	defer delete(a.flows, f)
	return a.flows[f]
}

// An accelerator takes both directions of a session over once it is established.
func ExampleAccelerator() {
	var a dataplane.Accelerator = adapter{map[clienttable.Flow]dataplane.Usage{}, func(t dataplane.Translation) {
		change := fmt.Sprint("the destination becomes ", t.Dst)
		if t.Src.IsValid() {
			change = fmt.Sprint("the source becomes ", t.Src)
		}
		fmt.Printf("install %v: by %v %s\n", t.Flow, t.Forward, change)
	}}
	plane, err := serve(dataplane.Config{Accelerator: a, AccelerateAfter: 2}, &dataplane.Service{Name: "web", Pool: twoNodes()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	const client, vip, node = "198.51.100.7:40000", "192.0.2.80:80", "10.0.0.11:8080"
	process(plane, segment(client, vip, 0x02, 1, 0))
	process(plane, segment(node, client, 0x12, 501, 2))
	process(plane, segment(client, vip, 0x10, 2, 502))
	process(plane, segment(client, vip, 0x10, 2, 502))
	plane.Step(time.Now())
	if u, ok := a.Usage(clienttable.MakeFlow(6, netip.MustParseAddrPort(client), netip.MustParseAddrPort(vip))); ok {
		var used dataplane.Usage = u //nolint:staticcheck // the name of the type is what is shown
		fmt.Println(used.Packets, "packets so far")
	}
	plane.KillSessions(func(dataplane.Session) bool { return true })
	// Output:
	// install tcp 198.51.100.7:40000 > 192.0.2.80:80: by nat the destination becomes 10.0.0.11:8080
	// install tcp 10.0.0.11:8080 > 198.51.100.7:40000: by nat the source becomes 192.0.2.80:80
	// 0 packets so far
	// remove tcp 198.51.100.7:40000 > 192.0.2.80:80
	// remove tcp 10.0.0.11:8080 > 198.51.100.7:40000
}

// blackboard is how two balancers of the examples know each other's flows; flowshare.Layer is one for a network.
type blackboard map[string][2]string

func (b blackboard) key(protocol uint8, x, y netip.AddrPort) string {
	if y.Compare(x) < 0 {
		x, y = y, x
	}
	return fmt.Sprint(protocol, x, y)
}

func (b blackboard) Announce(protocol uint8, x, y netip.AddrPort, node, note string) {
	b[b.key(protocol, x, y)] = [2]string{node, note}
}

func (b blackboard) Withdraw(protocol uint8, x, y netip.AddrPort) { delete(b, b.key(protocol, x, y)) }

func (b blackboard) Lookup(protocol uint8, x, y netip.AddrPort) (node, note string, ok bool) {
	v, ok := b[b.key(protocol, x, y)]
	return v[0], v[1], ok
}

func (b blackboard) Find(protocol uint8, x, y netip.AddrPort, done func(node, note string, ok bool)) {
	done(b.Lookup(protocol, x, y))
}

// A connection goes on by way of another balancer, to the node that it has.
func ExamplePeers() {
	var peers dataplane.Peers = blackboard{}
	const client, vip = "198.51.100.7:40000", "192.0.2.80:80"
	first, err := serve(dataplane.Config{Peers: peers}, &dataplane.Service{Name: "web", Pool: twoNodes()})
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := serve(dataplane.Config{Peers: peers}, &dataplane.Service{Name: "web", Pool: twoNodes()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer second.Close()
	process(first, segment(client, vip, 0x02, 1, 0))
	process(first, segment("10.0.0.11:8080", client, 0x12, 501, 2))
	v, _ := process(second, segment(client, vip, 0x10, 2, 502))
	fmt.Println(v, "while the peers are asked")
	out := second.Process(time.Now(), nil, nil, dataplane.ReadOffset, nil) // what the answer has let go
	fmt.Println("sent to", netip.AddrFrom4([4]byte(out[0][dataplane.Headroom+16:])), "with", second.Stats().Adopted, "connection taken over")
	first.Close()
	// Output:
	// held while the peers are asked
	// sent to 10.0.0.11 with 1 connection taken over
}

// Flows to anywhere go to a node in a tunnel, by the rules of an interceptor.
func ExampleIntercept() {
	engine, err := intercept.New(&intercept.Config{
		Nodes: []intercept.Node{{Node: steering.Node{Name: "sh1", Addr: netip.MustParseAddrPort("10.0.0.21:0")}}},
		Rules: []intercept.Rule{{Name: "web", Match: intercept.Match{DstPort: intercept.Port(80)}, Targets: []string{"sh1"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	plane, err := dataplane.New(&dataplane.Config{
		Intercept: &dataplane.Intercept{Engine: engine},
		Addrs:     []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	for _, to := range []string{"203.0.113.1:80", "203.0.113.1:22"} {
		v, out := process(plane, segment("198.51.100.7:40000", to, 0x02, 1, 0))
		fmt.Println(to, v, "to", netip.AddrFrom4([4]byte(out[16:20])), "protocol", out[9])
	}
	// Output:
	// 203.0.113.1:80 forwarded to 10.0.0.21 protocol 4
	// 203.0.113.1:22 passed to 203.0.113.1 protocol 6
}
