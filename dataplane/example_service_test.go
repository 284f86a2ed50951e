package dataplane_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// twoNodes is a pool for the services of the examples.
func twoNodes() *steering.Pool {
	pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin},
		steering.Node{Name: "web1", Addr: netip.MustParseAddrPort("10.0.0.11:8080")}, steering.Node{Name: "web2", Addr: netip.MustParseAddrPort("10.0.0.12:8080")})
	if err != nil {
		log.Fatal(err)
	}
	return pool
}

// serve makes a Plane that has a service at port 80 of a virtual address.
func serve(cfg dataplane.Config, svc *dataplane.Service) (*dataplane.Plane, error) {
	match, err := policy.ParseMatch("192.0.2.80 tcp/80")
	if err != nil {
		return nil, err
	}
	if cfg.Policies, err = policy.Compile(nil, policy.Rule[*dataplane.Service]{Name: svc.Name, Match: match, Value: svc}); err != nil {
		return nil, err
	}
	cfg.MaxSessions, cfg.MaxAssociations = 1024, 1024
	return dataplane.New(&cfg)
}

// segment is a TCP segment without data, in an IPv4 packet.
func segment(src, dst string, flags byte, seq, ack uint32) []byte {
	from, to := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	b := make([]byte, 40)
	b[0], b[3], b[8], b[9] = 0x45, 40, 64, 6
	copy(b[12:], from.Addr().AsSlice())
	copy(b[16:], to.Addr().AsSlice())
	tcp := b[20:]
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13], tcp[14] = 5<<4, flags, 16
	sum := func(b []byte, s uint32) uint16 {
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		s = s>>16 + s&0xffff
		return ^uint16(s>>16 + s)
	}
	binary.BigEndian.PutUint16(b[10:], sum(b[:20], 0))
	binary.BigEndian.PutUint16(tcp[16:], sum(b[12:], 6+20)) // the addresses, the protocol, the length, and the segment
	return b
}

// process gives one packet to a Plane, and returns what comes out.
func process(p *dataplane.Plane, packet []byte) (dataplane.Verdict, []byte) {
	buf := append(make([]byte, dataplane.ReadOffset), packet...)
	var v [1]dataplane.Verdict
	out := p.Process(time.Now(), [][]byte{buf}, []int{len(packet)}, dataplane.ReadOffset, v[:])
	if len(out) == 0 {
		return v[0], nil
	}
	return v[0], out[0][dataplane.Headroom:]
}

// A service has a name, a pool and a way to its nodes; all its faults come at once.
func ExampleService() {
	svc := &dataplane.Service{
		Name: "web", Pool: twoNodes(), Mode: clienttable.ServerPerSession,
		Forward: dataplane.FullNAT, MinNodes: -1, MidStream: dataplane.Silent,
	}
	_, err := serve(dataplane.Config{}, svc)
	fmt.Println(errors.Is(err, dataplane.ErrInvalid))
	fmt.Println(err)

	svc.Locals, svc.MinNodes = []netip.Addr{netip.MustParseAddr("10.0.0.1")}, 1
	plane, err := serve(dataplane.Config{}, svc)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	e, err := plane.ExplainFlow(6, netip.MustParseAddrPort("198.51.100.7:40000"), netip.MustParseAddrPort("192.0.2.80:80"))
	fmt.Println(e.Verdict, "from", e.Out.Src().Addr(), err)
	// Output:
	// true
	// dataplane: invalid configuration: Service "web".MinNodes = -1: want 1 to 32767, or 0 for 1
	// dataplane: invalid configuration: Service "web".Locals = none: want at least one address, with FullNAT
	// forwarded from 10.0.0.1 <nil>
}

// Some clients have a node of their own, as long as it may have them.
func ExampleStatic() {
	plane, err := serve(dataplane.Config{}, &dataplane.Service{Name: "web", Pool: twoNodes(), Static: []dataplane.Static{
		{Clients: netip.MustParsePrefix("198.51.100.0/24"), Node: "web1"},
		{Clients: netip.MustParsePrefix("198.51.100.7/32"), Node: "web2"},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	node := func(client string) string {
		e, err := plane.ExplainFlow(6, netip.MustParseAddrPort(client), netip.MustParseAddrPort("192.0.2.80:80"))
		if err != nil {
			log.Fatal(err)
		}
		return e.Node
	}
	for range 2 {
		fmt.Println(node("198.51.100.6:40000"), node("198.51.100.7:40000"))
	}
	plane.SetUp("web2", false)
	fmt.Println(node("198.51.100.7:40000"), "while web2 is down")
	// Output:
	// web1 web2
	// web1 web2
	// web1 while web2 is down
}

// The ways to a node have names, for files and pages.
func ExampleForward() {
	var f dataplane.Forward
	for _, name := range []string{"fullnat", "tunnel", "nut"} {
		err := f.UnmarshalText([]byte(name))
		fmt.Println(f, f == dataplane.Tunnelled, err)
	}
	// Output:
	// fullnat false <nil>
	// tunnel true <nil>
	// tunnel true dataplane: forwarding "nut": want one of nat, fullnat, dsr, tunnel, route
}

// Packets go to nodes inside others, and nodes answer past the balancer.
func ExampleTunnel() {
	tunnel := dataplane.Tunnel{Kind: dataplane.GRE, Key: 7}
	plane, err := serve(dataplane.Config{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		&dataplane.Service{Name: "web", Pool: twoNodes(), Forward: dataplane.Tunnelled, Tunnel: tunnel})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	packet := segment("198.51.100.7:40000", "192.0.2.80:80", 0x02, 1, 0)
	v, out := process(plane, packet)
	fmt.Println(v, "by", tunnel)
	fmt.Println("outer:", netip.AddrFrom4([4]byte(out[12:16])), ">", netip.AddrFrom4([4]byte(out[16:20])), "protocol", out[9], "key", binary.BigEndian.Uint32(out[24:]))
	fmt.Println("inner as it came:", string(out[28:]) == string(packet))
	// Output:
	// forwarded by gre key 7
	// outer: 10.0.0.1 > 10.0.0.11 protocol 47 key 7
	// inner as it came: true
}

// The balancer answers SYNs itself, and keeps nothing of them until the client has proven its address.
func ExampleDelay() {
	delay := &dataplane.Delay{Read: dataplane.ReadTLS, Limits: splice.Limits{Budget: 4096, Time: 3 * time.Second}}
	plane, err := serve(dataplane.Config{}, &dataplane.Service{Name: "web", Pool: twoNodes(), Delay: delay})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()
	v, out := process(plane, segment("198.51.100.7:40000", "192.0.2.80:80", 0x02, 1, 0))
	fmt.Println(v, "with SYN and ACK:", out[33] == 0x12)
	var st dataplane.DelayStats = plane.Stats().Delay //nolint:staticcheck // the name of the type is what is shown
	fmt.Println(st.Answered, "answered,", st.Held, "held")

	cookie := binary.BigEndian.Uint32(out[24:])
	v, _ = process(plane, segment("198.51.100.7:40000", "192.0.2.80:80", 0x10, 2, cookie+1))
	fmt.Println(v, plane.Stats().Delay.Confirmed, "confirmed,", plane.Stats().Delay.Held, "held: it waits for a ClientHello")
	// Output:
	// answered with SYN and ACK: true
	// 1 answered, 0 held
	// held 1 confirmed, 1 held: it waits for a ClientHello
}
