package site

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/intercept"
)

var (
	conns  = flag.Int("conns", 100, "connections that run while members fail")
	strict = flag.Bool("strict", false, "failures must be noticed within 4 s: for machines that have nothing else to do")
)

// TestFailures kills, freezes and cuts off members while connections carry data: no connection moves to another node and none breaks;
// the others notice it; and when the member is back, all know the same flows.
func TestFailures(t *testing.T) {
	pair := func(p string, names ...string) (ms []cluster.Peer) {
		for _, n := range names {
			ms = append(ms, cluster.Peer{Name: n, Pair: p})
		}
		return ms
	}
	for _, c := range []struct {
		topology cluster.Topology
		members  []cluster.Peer
		forward  dataplane.Forward
		down     intercept.ClusterState
		conns    int
		failures string
	}{
		{cluster.Serial, pair("east", "lb1", "lb2"), dataplane.NAT, intercept.SerialPartnerDown, max(*conns/4, 20), "killed frozen"},
		{cluster.Parallel, pair("", "lb1", "lb2", "lb3"), dataplane.NAT, intercept.ParallelPeerDown, max(*conns/4, 20), "killed cut"},
		{cluster.Quad, append(pair("east", "lb1", "lb2"), pair("west", "lb3", "lb4")...), dataplane.NAT, intercept.SerialPartnerDown, *conns, "killed frozen cut"},
	} {
		t.Run(c.topology.String(), func(t *testing.T) {
			t.Parallel() // most of the time they wait
			s := newSite(t, c.topology, c.members, c.forward)
			for i := range c.members {
				s.start(i)
			}
			everybody := s.running()
			s.see(everybody)
			s.state(everybody, intercept.Steady.String())
			s.spread(everybody)
			talkers := s.open(c.conns)
			s.all(talkers, 1)
			s.agree(everybody, len(talkers))
			s.nodes(everybody, talkers)

			last := len(c.members) - 1
			rest := s.running(last)
			// fail has the last member fail, and the router use the others as soon as these know.
			fail := func(how string, do func()) {
				t.Helper()
				begun := time.Now()
				do()
				noticed := s.see(rest).Sub(begun)
				t.Logf("%d members, %d connections: %s, noticed by all others after %v", len(c.members), len(talkers), how, noticed.Round(10*time.Millisecond))
				// On a machine that is busy otherwise it takes longer.
				if limit := map[bool]time.Duration{true: 4 * time.Second, false: 25 * time.Second}[*strict]; noticed > limit {
					t.Errorf("%s: noticed after %v, want %v", how, noticed, limit)
				}
				s.spread(rest)
				s.state(rest, c.down.String())
				s.all(talkers, 2)
				talkers = append(talkers, s.open(10)...) // new ones are taken, too
				s.all(talkers, 1)
				s.agree(rest, len(talkers))
				s.nodes(rest, talkers)
			}
			// back has it take part again.
			back := func() {
				t.Helper()
				begun := time.Now()
				s.see(everybody)
				s.agree(everybody, len(talkers))
				t.Logf("all know the same again after %v", time.Since(begun).Round(10*time.Millisecond))
				s.state(everybody, intercept.Steady.String())
				s.spread(everybody)
				s.all(talkers, 2)
				talkers = append(talkers, s.open(10)...)
				s.all(talkers, 1)
				s.agree(everybody, len(talkers))
				s.nodes(everybody, talkers)
			}
			for how := range strings.FieldsSeq(c.failures) {
				switch how {
				case "killed":
					fail(how, func() {
						s.members[last].kill()
						s.members[last] = nil
					})
					s.start(last)
				case "frozen":
					fail(how, func() { s.freeze(last) })
					s.thaw(last)
				case "cut":
					fail(how+" off", func() { s.cut(last) })
					s.mend(last)
				}
				back()
			}
			t.Logf("%d connections, none of them broken", len(talkers))
		})
	}
}
