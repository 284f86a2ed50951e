package intercept

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/lbprim/lbprim/steering"
)

// FuzzEngine makes configurations and packets out of arbitrary numbers: nothing panics,
// an explanation is the decision, a redirect names a node that is up, and every count
// comes back.
func FuzzEngine(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Add(uint64(0xffff), uint64(3))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		names := []string{"a", "b", "c", "d", "zz"}[:4+r.IntN(40)/39]
		prefix := func() netip.Prefix {
			if r.IntN(2) == 0 {
				return netip.Prefix{}
			}
			return randomNet(r, r.IntN(4) == 0)
		}
		match := func() Match {
			return Match{Src: prefix(), DstPort: Ports{0, 0}, VLAN: []int{0, 0, 0, 5, Untagged}[r.IntN(5)]}
		}
		some := func() (out []string) {
			for _, n := range names {
				if r.IntN(3) == 0 {
					out = append(out, n)
				}
			}
			return out
		}
		config := func() *Config {
			c := &Config{Nodes: sh("a", "b", "c", "d"), FairPeeringV2: r.IntN(2) == 0, AllowFailure: r.IntN(2) == 0, Seed: r.Uint64() % 4}
			for i := range c.Nodes {
				c.Nodes[i].Side = Side(r.IntN(2))
				c.Nodes[i].Admin = steering.AdminState(r.IntN(8) / 5 * r.IntN(4))
				c.Nodes[i].MaxSessions = r.IntN(4) / 3 * 2
			}
			for range r.IntN(4) {
				c.InPath = append(c.InPath, InPathRule{Match: match(), Action: Action(r.IntN(4)), Disabled: r.IntN(4) == 0})
			}
			for range r.IntN(4) {
				c.Rules = append(c.Rules, Rule{Match: match(), Peer: PeerKind(r.IntN(3)), Targets: some(), FairPeering: r.IntN(2) == 0})
			}
			for range r.IntN(5) {
				row := randomRow(r)
				row.Targets = some()
				c.Services = append(c.Services, row)
			}
			return c
		}
		e, err := New(config())
		if err != nil {
			return
		}
		var open []Decision
		for range 60 {
			switch r.IntN(8) {
			case 0:
				_, _ = e.Set(config())
			case 1:
				e.SetUp(steering.NodeID(1+r.IntN(4)), r.IntN(3) > 0)
			case 2:
				e.SetPressure(steering.NodeID(1+r.IntN(4)), steering.Level(r.IntN(3)))
			case 3:
				e.SetCluster(ClusterState(r.IntN(4)))
			default:
				v6 := r.IntN(4) == 0
				p := &Packet{
					Src:      netip.AddrPortFrom(randomAddr(r, v6), uint16(r.IntN(16))),
					Dst:      netip.AddrPortFrom(randomAddr(r, v6), uint16(r.IntN(16))),
					Protocol: []uint8{tcp, udp}[r.IntN(2)], From: Side(r.IntN(2)), SYN: r.IntN(2) == 0, VLAN: uint16(r.IntN(2) * 5),
				}
				if r.IntN(2) == 0 {
					p.Peer = netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(5))})
				}
				x := e.Explain(p)
				d := e.Decide(p)
				said := d
				said.Counted = false
				if said != x.Decision {
					for id, st := range e.All() {
						t.Logf("%d %+v", id, st)
					}
					t.Fatalf("decided %+v, explained %s", d, x)
				}
				if (d.Action == Redirect) != (d.Node != 0) || d.Node != 0 && !e.Usable(d.Node) {
					t.Fatalf("%+v", d)
				}
				open = append(open, d)
			}
		}
		for _, d := range open {
			e.End(d)
		}
		for id, st := range e.All() {
			if st.Sessions != 0 || e.Peers(id) != 0 {
				t.Fatalf("node %d: %d sessions, %d peers left", id, st.Sessions, e.Peers(id))
			}
		}
	})
}
