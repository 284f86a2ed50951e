package main

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// claim is something the story shows, and how often it was found true or not.
type claim struct {
	text         string
	right, wrong int
	witness      string
}

func (c *claim) check(ok bool, format string, args ...any) {
	if ok {
		c.right++
		return
	}
	if c.wrong++; c.witness == "" {
		c.witness = fmt.Sprintf(format, args...)
	}
}

// verify compares what the hosts saw with what the rules say, and returns the claims that do not hold.
func verify(l *ledger, flows []*flow, out io.Writer) (untrue []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answered := &claim{text: "every flow was answered, through all failures"}
	refused := &claim{text: "telnet was refused, and let pass only where both balancers of a link were down"}
	redirected := &claim{text: "web and dns went through a node, in both directions, whichever balancers they met"}
	same := &claim{text: "a flow kept its node, also when another balancer took over"}
	untouched := &claim{text: "ssh and ntp went through no node"}
	nonsteady := &claim{text: "while a pair was down, new dns passed by, and its link was a cable"}
	ways := &claim{text: "the way out was mpls, then internet, then back out of the balancer, as uplinks failed"}
	for _, f := range flows {
		answered.check(f.failed == nil, "%v: %v", f, f.failed)
		e := l.flows[flowshare.MakeFlow((&packet{tcp: f.kind != dns && f.kind != ntp}).protocol(), f.src, f.dst)]
		if e == nil {
			e = &[phases]entry{}
		}
		owner := ""
		for i := f.born; i < phases; i++ {
			x := &e[i]
			nodes := slices.Sorted(maps.Keys(both(x.nodes)))
			way := slices.Sorted(maps.Keys(x.ways))
			cable := story()[i].balancers[0] && story()[i].balancers[1] && f.link == 0
			switch {
			case f.kind == telnet:
				if i == f.born {
					refused.check(f.refused != cable && (len(way) == 0) != cable, "%v, phase %d: refused %v, arrived by %v", f, i+1, f.refused, way)
				}
				continue
			case cable:
				nonsteady.check(slices.Equal(way, []string{wayCable}), "%v, phase %d: arrived by %v", f, i+1, way)
				continue
			case f.kind == ssh || f.kind == ntp:
				untouched.check(len(nodes) == 0 && slices.Equal(way, []string{wayBalancer}), "%v, phase %d: at %v, by %v", f, i+1, nodes, way)
				continue
			case f.kind == dns && f.born == i && story()[i].balancers[1]:
				nonsteady.check(len(nodes) == 0, "%v, phase %d: at %v", f, i+1, nodes)
				continue
			case f.kind == web && story()[f.born].balancers[1] && f.link == 0:
				continue // it began on the cable, unseen: nobody may redirect the middle of a connection
			}
			redirected.check(len(x.nodes[0]) == 1 && len(x.nodes[1]) == 1, "%v, phase %d: at nodes %v on the way there, %v back", f, i+1, x.nodes[0], x.nodes[1])
			if len(nodes) > 0 {
				same.check(len(nodes) == 1 && (owner == "" || owner == nodes[0]), "%v, phase %d: at %v, before at %q", f, i+1, nodes, owner)
				owner = nodes[0]
			}
			want := uplinks[0]
			if g := story()[i].gateways; g[0] && g[1] {
				want = wayBalancer
			} else if g[0] {
				want = uplinks[1]
			}
			ways.check(slices.Equal(way, []string{want}), "%v, phase %d: by %v instead of %s", f, i+1, way, want)
		}
	}
	fmt.Fprintln(out, "\nVerified from what clients, nodes, gateways and servers saw:")
	for _, c := range []*claim{answered, refused, redirected, same, untouched, nonsteady, ways} {
		mark := "yes"
		if c.wrong > 0 || c.right == 0 {
			mark = "NO "
			untrue = append(untrue, c.text+": "+c.witness)
		}
		fmt.Fprintf(out, "  %s %s (%d of %d)\n", mark, c.text, c.right, c.right+c.wrong)
		if c.wrong > 0 {
			fmt.Fprintf(out, "      such as %s\n", c.witness)
		}
	}
	return untrue
}

func both(sides [2]map[string]int) map[string]int {
	all := map[string]int{}
	for _, m := range sides {
		maps.Copy(all, m)
	}
	return all
}
