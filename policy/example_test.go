package policy_test

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/policy"
)

func rule(name, match, farm string) policy.Rule[string] {
	m, err := policy.ParseMatch(match)
	if err != nil {
		panic(err)
	}
	return policy.Rule[string]{Name: name, Match: m, Value: farm}
}

func ExampleCompile() {
	table, err := policy.Compile(nil,
		rule("all", "192.0.2.80", "default farm"),
		rule("web", "192.0.2.80 tcp/80", "web farm"),
		rule("web-staff", "192.0.2.80 tcp/80 from 10.0.0.0/8", "staff farm"),
		rule("dns6", "2001:db8::53 udp/53", "dns farm"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	farm, ok := table.Lookup(policy.Packet{
		Src:      netip.MustParseAddrPort("10.1.2.3:40000"),
		Dst:      netip.MustParseAddrPort("192.0.2.80:80"),
		Protocol: 6,
	})
	fmt.Println(farm, ok)
	// Output: staff farm true
}

func ExampleCompile_refused() {
	_, err := policy.Compile(nil,
		rule("low", "192.0.2.80 tcp/80 from 10.0.0.0-10.0.0.100", "a"),
		rule("high", "192.0.2.80 tcp/80 from 10.0.0.50-10.0.0.150", "b"),
	)
	fmt.Println(err)
	// Output:
	// rule "low" (#0): policy: ambiguous match with rule "high" (#1); both match tcp 10.0.0.50:40000 > 192.0.2.80:80
}

func ExampleTable_Explain() {
	table, err := policy.Compile(nil,
		rule("all", "192.0.2.80", "default farm"),
		rule("web-staff", "192.0.2.80 tcp/80 from 10.0.0.0/8", "staff farm"),
		rule("mail", "192.0.2.80 tcp/25", "mail farm"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := policy.ParsePacket("tcp 198.51.100.7:40000 > 192.0.2.80:80")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(table.Explain(p))
	// Output:
	// tcp 198.51.100.7:40000 > 192.0.2.80:80: match
	//   VIP 192.0.2.80/32 owns the destination
	//   skip  web-staff (192.0.2.80 tcp/80 from 10.0.0.0/8): client 198.51.100.7 is outside
	//   match all (192.0.2.80)
	//   1 other rule of the VIP is for other traffic or less specific
}

func ExampleTable_Shadowed() {
	table, err := policy.Compile(nil,
		rule("low", "192.0.2.80 tcp/0-32767", "a"),
		rule("high", "192.0.2.80 tcp/32768-65535", "b"),
		rule("rest", "192.0.2.80 tcp", "c"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	for r, cover := range table.Shadowed() {
		fmt.Printf("%s can never win: %s and %s do\n", r.Name, cover[0].Name, cover[1].Name)
	}
	// Output: rest can never win: low and high do
}

func ExampleResolver() {
	var r policy.Resolver[string] // shared by all workers
	p, err := policy.ParsePacket("udp [2001:db8::1]:40000 > [2001:db8::53]:53")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, ok := r.Lookup(p)
	fmt.Println(ok)

	table, err := policy.Compile(nil, rule("dns", "2001:db8::53 udp/53", "dns farm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	r.Store(table)
	fmt.Println(r.Lookup(p))
	// Output:
	// false
	// dns farm true
}

func ExampleTable_With() {
	old, err := policy.Compile(nil, rule("web", "192.0.2.80 tcp/80", "web farm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := old.With(rule("mail", "192.0.2.80 tcp/25", "mail farm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(old.Len(), table.Len())

	_, err = table.With(rule("mail2", "192.0.2.80 tcp/25", "other farm"))
	var fault *policy.RuleError
	if errors.As(err, &fault) {
		fmt.Println(fault.Name, "collides with", fault.Other, "for", fault.Witness)
	}
	// Output:
	// 1 2
	// mail2 collides with mail for tcp 0.0.0.0:40000 > 192.0.2.80:25
}

func ExampleMatch_Relate() {
	web, _ := policy.ParseMatch("192.0.2.80 tcp/80")
	all, _ := policy.ParseMatch("192.0.2.80 tcp")
	fmt.Println(web.Relate(all), all.Relate(web))
	// Output: narrower wider
}

func ExampleTable_LookupBatch() {
	table, err := policy.Compile(nil, rule("web", "192.0.2.80 tcp/80", "web farm"))
	if err != nil {
		fmt.Println(err)
		return
	}
	packets := make([]policy.Packet, 2) // as many as were received together
	for i, text := range []string{"tcp 10.1.2.3:40000 > 192.0.2.80:80", "tcp 10.1.2.3:40000 > 192.0.2.80:81"} {
		if packets[i], err = policy.ParsePacket(text); err != nil {
			fmt.Println(err)
			return
		}
	}
	farms, ok := make([]string, len(packets)), make([]bool, len(packets)) // used again and again
	table.LookupBatch(packets, farms, ok)
	fmt.Printf("%q %v\n", farms, ok)
	// Output: ["web farm" ""] [true false]
}

// Rules can be written out as well as parsed, and a client can be kept to its tier.
func ExampleConfig() {
	vip := netip.MustParsePrefix("192.0.2.80/32")
	staff := policy.AddrRange{First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr("10.0.0.99")}
	high := policy.Match{Dst: vip, Protocol: policy.TCP, DstPort: policy.PortRange{First: 8000, Last: 8999}, Src: staff}
	table, err := policy.Compile(&policy.Config{StrictTier: true},
		policy.Rule[string]{Name: "staff", Match: high, Value: "staff farm"},
		policy.Rule[string]{Name: "all", Match: policy.Match{Dst: vip, Protocol: policy.TCP}, Value: "default farm"},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(high, "in tier", high.Tier())
	e := table.Explain(policy.Packet{
		Src: netip.MustParseAddrPort("10.0.0.100:40000"), Dst: netip.MustParseAddrPort("192.0.2.80:8080"), Protocol: 6,
	})
	fmt.Println(e.Outcome, e.Considered[0].Rule.Name, e.Considered[0].Finding)
	// Output:
	// 192.0.2.80 tcp/8000-8999 from 10.0.0.1-10.0.0.99 in tier port
	// no match staff client outside
}
