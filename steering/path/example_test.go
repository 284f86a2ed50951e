package path_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/steering/path"
)

func ExampleEngine() {
	cfg := &path.Config{
		Local: "office",
		Sites: []path.Site{
			{Name: "office", Uplinks: []path.Uplink{
				{Name: "mpls", Gateway: netip.MustParseAddr("10.1.0.1")},
				{Name: "internet", Gateway: netip.MustParseAddr("10.1.1.1")},
			}},
			{Name: "dc", Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		},
		Balancers: []path.Balancer{{Name: "b1", Interfaces: []path.Interface{
			{Name: "inpath0_0", Prefix: netip.MustParsePrefix("10.1.0.10/24")},
			{Name: "inpath0_1", Prefix: netip.MustParsePrefix("10.1.1.10/24")},
		}}},
		Rules: []path.Rule{{
			Name: "voice", Match: path.Match{DstSite: "dc", DstPort: path.Ports{First: 5060, Last: 5061}},
			Uplinks: []string{"mpls", "internet"}, SetDSCP: path.CodePoint(46),
		}},
	}
	e, err := path.New(cfg, 1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	p := &path.Packet{Src: netip.MustParseAddrPort("10.1.0.5:5060"), Dst: netip.MustParseAddrPort("10.2.0.5:5060"), Protocol: 17}
	d := e.Decide(p)
	fmt.Println(d.Outcome, d.Channel.Uplink, d.Channel.Interface, d.DSCP)

	// The gateway of the first uplink stops answering.
	now := time.Unix(0, 0)
	for range 3 {
		now = e.Step(now, func(c path.Channel) bool { return c.Uplink != "mpls" })
		e.Decide(p) // there is traffic, so probes stay close
	}
	fmt.Println(e.Explain(p))
	// Output:
	// sent mpls inpath0_0 46
	// sent by uplink "internet", inpath0_1 of b1, DSCP 46
	//   path rule 0 "voice": uplink "mpls" has no channel that is up
	//   path rule 0 "voice": uplink "internet"
}

// ports names applications by the server's port. One that looks into payloads may have to say, at first, that it does not know yet.
type ports map[uint16]string

func (m ports) Identify(p *path.Packet) (app string, ok bool) {
	app, ok = m[p.Dst.Port()]
	return app, ok
}

// Rules by application ask an Identifier; what no rule sends leaves by the interface that redirected its connection.
func ExampleIdentifier() {
	var apps path.Identifier = ports{5060: "voice"}
	e, err := path.New(&path.Config{
		Local: "office",
		Sites: []path.Site{
			{Name: "office", Uplinks: []path.Uplink{{Name: "mpls", Gateway: netip.MustParseAddr("10.1.0.1")}}},
			{Name: "dc", Networks: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		},
		Balancers: []path.Balancer{{Name: "b1", Interfaces: []path.Interface{{Name: "inpath0_0", Prefix: netip.MustParsePrefix("10.1.0.10/24")}}}},
		Rules:     []path.Rule{{Name: "voice", Match: path.Match{App: "voice"}, Uplinks: []string{"mpls"}}},
	}, 1, apps)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, port := range []uint16{5060, 80} {
		d := e.Decide(&path.Packet{
			Src: netip.MustParseAddrPort("10.1.0.5:40000"), Dst: netip.AddrPortFrom(netip.MustParseAddr("10.2.0.5"), port), Protocol: 17,
			Via: path.Via{Balancer: "b1", Interface: "inpath0_0"},
		})
		fmt.Println(port, d.Outcome, d.Channel != nil && d.Channel.Uplink == "mpls")
	}
	// Output:
	// 5060 sent true
	// 80 relayed false
}
