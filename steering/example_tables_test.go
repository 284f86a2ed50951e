package steering_test

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/steering"
)

func ExampleMaglevTable() {
	t, err := steering.NewMaglevTable(steering.DefaultTableSize, 0,
		steering.Share{Name: "a", Weight: 1}, steering.Share{Name: "b", Weight: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	slots := func(t *steering.MaglevTable) (a int) {
		for _, i := range t.Slots() {
			if i == 0 {
				a++
			}
		}
		return a
	}
	down := t.With(steering.FullPart, 0) // b is down
	fmt.Println(slots(t), slots(down), slots(down.With()))
	// Output: 16384 65537 16384
}

func ExampleBuckets() {
	b, err := steering.NewBuckets(steering.DefaultBuckets, 0,
		steering.Share{Name: "a", Weight: 2}, steering.Share{Name: "b", Weight: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	client, server := netip.MustParseAddrPort("192.0.2.1:1024"), netip.MustParseAddrPort("198.51.100.1:80")
	there := b.Lookup(steering.HashFlow(6, client, server))
	back := b.Lookup(steering.HashEndpoints(6, steering.EndpointOf(server), steering.EndpointOf(client)))
	fmt.Println(len(b.Slots()), there == back)
	// Output: 256 true
}

func ExampleGauger() {
	p := steering.Pressure{CPU: steering.Thresholds{HighRise: 0.8, HighFall: 0.6}}
	if err := p.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	var g steering.Gauger
	for _, cpu := range []float64{0.7, 0.8, 0.7, 0.5} {
		fmt.Print(g.Update(&p, steering.Gauges{CPU: cpu}), " ")
	}
	// Output: normal high high normal
}

func ExamplePool_Explain() {
	p, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, Backup: steering.BackupWhenDown},
		steering.Node{Name: "a", MaxSessions: 1},
		steering.Node{Name: "b"},
		steering.Node{Name: "c", Admin: steering.SessionsShutdown},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	b, _ := p.ID("b")
	p.SetPressure(b, steering.Severe)
	fmt.Println(p.Explain(steering.Key{}))
	for _, status := range p.All() {
		fmt.Println(status.Node.Name, status.State)
	}
	// Output:
	// roundrobin: node a
	//   members "b": severe-pressure, 0 sessions, share 0.000
	//   members "c": sessions-shutdown, 0 sessions, share 0.000
	//   members "a": chosen, 0 sessions, share 1.000
	// a available
	// b severe-pressure
	// c sessions-shutdown
}

func ExamplePool_Reconfigure() {
	ids := new(steering.IDs) // one for all pools behind one client table
	p, err := steering.NewPool(&steering.Config{IDs: ids}, steering.Node{Name: "a"}, steering.Node{Name: "b"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = p.Reconfigure(&steering.Config{Metric: steering.Maglev, TableSize: 1000}, steering.Node{Name: "c", Weight: -7})
	fmt.Println(err)
	var field *steering.FieldError
	fmt.Println(errors.As(err, &field), field.Field, errors.Is(err, steering.ErrInvalid))

	removed, err := p.Reconfigure(&steering.Config{Metric: steering.Maglev, SlowStart: time.Minute},
		steering.Node{Name: "b"}, steering.Node{Name: "c"})
	fmt.Println(removed, err, p.Metric())
	// Output:
	// steering: Config.TableSize = 1000: want a prime from 3 to 16777216
	// steering: Node[0] "c".Weight = -7: want 1 to 1000000, 0 for the default of 1, or ZeroWeight
	// true Config.TableSize true
	// [1] <nil> maglev
}

func ExampleHashWCCP() {
	src, dst := netip.MustParseAddrPort("192.0.2.1:1024"), netip.MustParseAddrPort("198.51.100.1:80")
	both := steering.WCCPSrcAddr | steering.WCCPDstAddr
	fmt.Println(steering.HashWCCP(both, src, dst) == steering.HashWCCP(both, dst, src))
	// Output: true
}

func ExampleRendezvous() {
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::3")
	all, without := steering.NewRendezvous([16]byte{1}, a, b, c), steering.NewRendezvous([16]byte{1}, a, c)
	for row := range uint32(3) {
		fmt.Println(all.Row(row), without.Row(row))
	}
	// Output:
	// [1 2 0] [1 0]
	// [2 0 1] [1 0]
	// [1 2 0] [1 0]
}

func ExampleToeplitz() {
	// The addresses and the result are those of the verification suite for receive-side
	// scaling.
	t := steering.NewToeplitz([40]byte{
		0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
		0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
	})
	fmt.Printf("%#x\n", t.Sum(netip.MustParseAddrPort("66.9.149.187:2794"), netip.MustParseAddrPort("161.142.100.80:1766"), true))
	// Output: 0x51ccc178
}

// A node's agent asks for half its weight, and for no new session later.
func ExamplePool_Advise() {
	p, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin}, steering.Node{Name: "a", Weight: 10}, steering.Node{Name: "b", Weight: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	a, _ := p.ID("a")
	for _, advice := range []steering.Advice{{Percent: 50}, {Admin: steering.Draining}, {Percent: 20_000}} {
		if err := p.Advise(a, advice); err != nil {
			fmt.Println(err)
			continue
		}
		for _, step := range p.Explain(steering.Key{}).Steps {
			var s steering.Step = step //nolint:staticcheck // the name of the type is what is shown
			fmt.Printf("%s: %v, share %.2f\n", s.Node, s.State, s.Share)
		}
	}
	// Output:
	// a: available, share 0.33
	// b: available, share 0.67
	// a: draining, share 0.00
	// b: available, share 1.00
	// steering: Advice.Percent = 20000: want 1 to 10000, 0 for 100, or ZeroWeight
}
