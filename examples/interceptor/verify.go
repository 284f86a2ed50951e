package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// claim is something the story shows, and how often it was found true or not.
type claim struct {
	Claim   string `json:"claim"`
	Right   int    `json:"right"`
	Wrong   int    `json:"wrong"`
	Witness string `json:"witness,omitempty"` // of the first that was not
}

func (c *claim) check(ok bool, format string, args ...any) {
	if ok {
		c.Right++
		return
	}
	if c.Wrong++; c.Witness == "" {
		c.Witness = fmt.Sprintf(format, args...)
	}
}

// holds reports whether it was found true, and ever looked at.
func (c *claim) holds() bool { return c.Wrong == 0 && c.Right > 0 }

// report is what was found of the story.
type report struct {
	Verified bool     `json:"verified"`
	Claims   []*claim `json:"claims"`
}

// untrue lists the claims that do not hold.
func (r *report) untrue() (all []string) {
	for _, c := range r.Claims {
		if !c.holds() {
			all = append(all, c.Claim+": "+c.Witness)
		}
	}
	return all
}

// text writes the report for people.
func (r *report) text(out io.Writer) {
	fmt.Fprintln(out, "Verified from what clients, nodes, gateways and servers saw:")
	for _, c := range r.Claims {
		mark := "yes"
		if !c.holds() {
			mark = "NO "
		}
		fmt.Fprintf(out, "  %s %s (%d of %d)\n", mark, c.Claim, c.Right, c.Right+c.Wrong)
		if c.Wrong > 0 {
			fmt.Fprintf(out, "      such as %s\n", c.Witness)
		}
	}
}

// verify compares what the hosts saw with what the rules say. Nobody talks any more.
func verify(l *ledger, flows []*flow, chat *chatter) *report {
	l.mu.Lock()
	defer l.mu.Unlock()
	answered := &claim{Claim: "every flow was answered, through all failures"}
	refused := &claim{Claim: "telnet was refused, and let pass only where both balancers of a link were down"}
	redirected := &claim{Claim: "web and dns went through a node, in both directions, whichever balancers they met"}
	same := &claim{Claim: "a flow kept its node, also when another balancer took over"}
	untouched := &claim{Claim: "ssh and ntp went through no node"}
	nonsteady := &claim{Claim: "while a pair was down, new dns passed by, and its link was a cable"}
	ways := &claim{Claim: "the way out was mpls, then internet, then back out of the balancer, as uplinks failed"}
	for _, f := range flows {
		answered.check(f.failed == nil, "%v: %v", f, f.failed)
		e := l.of(f)
		owner := ""
		for i := f.born; i < phases; i++ {
			x := &e[i]
			nodes := slices.Sorted(maps.Keys(both(x.nodes)))
			way := slices.Sorted(maps.Keys(x.ways))
			cable := acts()[i].balancers[0] && acts()[i].balancers[1] && f.link == 0
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
			case f.kind == dns && f.born == i && acts()[i].balancers[1]:
				nonsteady.check(len(nodes) == 0, "%v, phase %d: at %v", f, i+1, nodes)
				continue
			case f.kind == web && acts()[f.born].balancers[1] && f.link == 0:
				continue // it began on the cable, unseen: nobody may redirect the middle of a connection
			}
			redirected.check(len(x.nodes[0]) == 1 && len(x.nodes[1]) == 1, "%v, phase %d: at nodes %v on the way there, %v back", f, i+1, x.nodes[0], x.nodes[1])
			if len(nodes) > 0 {
				same.check(len(nodes) == 1 && (owner == "" || owner == nodes[0]), "%v, phase %d: at %v, before at %q", f, i+1, nodes, owner)
				owner = nodes[0]
			}
			want := uplinks[0]
			if g := acts()[i].gateways; g[0] && g[1] {
				want = wayBalancer
			} else if g[0] {
				want = uplinks[1]
			}
			ways.check(slices.Equal(way, []string{want}), "%v, phase %d: by %v instead of %s", f, i+1, way, want)
		}
	}
	r := &report{Claims: []*claim{answered, refused, redirected, same, untouched, nonsteady, ways, meanwhile(chat), passing(l, chat)}}
	r.Verified = len(r.untrue()) == 0
	return r
}

// meanwhile: what was said while something failed was answered in the end.
func meanwhile(chat *chatter) *claim {
	_, longest := chat.status()
	c := &claim{Claim: fmt.Sprintf("conversations went on while all this failed: no packet waited for longer than %.1fs", longest.Seconds())}
	for _, f := range chat.flows {
		if f.said > 0 {
			c.check(f.failed == nil, "%v: %v", f, f.failed)
		}
	}
	return c
}

// passing: what no node may have had none, and what is denied reached nobody but over a cable, at any moment.
func passing(l *ledger, chat *chatter) *claim {
	c := &claim{Claim: "at no moment did ssh or ntp go through a node, or telnet through a balancer"}
	for _, f := range chat.flows {
		e := l.of(f)
		for i := range e {
			switch f.kind {
			case ssh, ntp:
				nodes := both(e[i].nodes)
				c.check(len(nodes) == 0, "%v, phase %d: at %v", f, i+1, nodes)
			case telnet:
				for way := range e[i].ways {
					c.check(way == wayCable, "%v, phase %d: arrived by %v", f, i+1, way)
				}
			}
		}
	}
	return c
}

func both(sides [2]map[string]int) map[string]int {
	all := map[string]int{}
	for _, m := range sides {
		maps.Copy(all, m)
	}
	return all
}
