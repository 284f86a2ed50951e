package path_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/steering/path"
)

// web knows one application.
type web struct{}

func (web) Identify(p *path.Packet) (string, bool) { return "web", p.Dst.Port() == 80 }

func ExampleConfig_Export() {
	cfg := &path.Config{
		Local: "office",
		Sites: []path.Site{{Name: "office", Uplinks: []path.Uplink{{Name: "isp", Gateway: netip.MustParseAddr("2001:db8::1")}}}},
		Balancers: []path.Balancer{{Name: "b1", Interfaces: []path.Interface{
			{Name: "inpath0_0", Prefix: netip.MustParsePrefix("2001:db8::10/64")},
		}}},
		Rules:   []path.Rule{{Name: "web", Match: path.Match{App: "web"}, Uplinks: []string{"isp"}, Else: path.Drop}},
		Marks:   []path.Mark{{Name: "bulk", Match: path.Match{Protocol: 6}, DSCP: path.CodePoint(8)}},
		Probing: path.Probing{Interval: time.Second},
	}
	file, err := cfg.Export()
	if err != nil {
		fmt.Println(err)
		return
	}
	same, err := path.Import(file)
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := path.New(same, 1, web{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := &path.Packet{Src: netip.MustParseAddrPort("[2001:db8::5]:9"), Dst: netip.MustParseAddrPort("[2001:db8:9::1]:80"), Protocol: 6}
	d := e.Decide(p)
	fmt.Println(d.Outcome, d.Rule, d.Mark, d.DSCP)
	p.HeaderOnly = true // the cluster is not steady
	fmt.Println(e.Decide(p).Outcome)
	for _, c := range e.Channels() {
		header := path.AppendHeader(nil, c.ID, path.EtherIPv6)
		id, etherType, _, err := path.ParseHeader(header)
		fmt.Println(c.Uplink, c.Up, c.Active, id == c.ID, etherType == path.EtherIPv6, err)
	}
	// Output:
	// sent web bulk 8
	// relayed
	// isp true true true true <nil>
}
