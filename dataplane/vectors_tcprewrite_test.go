package dataplane

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// rewritten returns the frames of one of tcprewrite's captures.
func rewritten(t *testing.T, name string) (out [][]byte) {
	f, err := os.Open(filepath.Join(testenv.Shared(t), "packets", "copyleft", name))
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return out
		}
		out = append(out, b)
	}
}

// TestVectorsTcprewrite translates what tcprewrite's pseudo-NAT of 96.17.211.0/24 to 172.16.0.0/24 translated, requests one
// way and answers the other, and wants the same bytes. Of the other pairs none applies: portmap changes ports of addresses
// that stay, and a node with a VIP's own address and NAT is none; endpoint puts many clients on one address without
// choosing ports; tos, fixcsum and vlan802.1ad change what a Plane leaves alone.
func TestVectorsTcprewrite(t *testing.T) {
	base, want := rewritten(t, "tcpreplay_test.pcap"), rewritten(t, "tcpreplay_test.rewrite_pnat.pcap")
	require.Len(t, base, 179)
	require.Len(t, want, len(base))
	ids := new(steering.IDs)
	public, private := netip.MustParsePrefix("96.17.211.0/24"), netip.MustParsePrefix("172.16.0.0/24")
	var rules []policy.Rule[*Service]
	seen := map[netip.Addr]bool{}
	for i := range base {
		b, x := packetOf(base[i]), packetOf(want[i])
		if b == nil || b[0]>>4 != 4 {
			continue
		}
		for _, at := range []int{12, 16} {
			vip, node := addrOf(b[at:at+4]), addrOf(x[at:at+4])
			if public.Contains(vip) && !seen[vip] {
				require.True(t, private.Contains(node))
				seen[vip] = true
				pool := mustPool(t, ids, steering.RoundRobin, steering.Node{Name: node.String(), Addr: ap(node, 0)})
				rules = append(rules, rule(vip.String(), vip.String(), &Service{Name: vip.String(), Pool: pool, MidStream: Reselect}))
			}
		}
	}
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) { c.Policies = table(t, rules...) })
	requests, answers, others := 0, 0, 0
	for i := range base {
		b, x := packetOf(base[i]), packetOf(want[i])
		if b == nil || b[0]>>4 != 4 {
			others++
			continue
		}
		in, out := b, x
		switch {
		case public.Contains(addrOf(b[16:20])):
			requests++
		case public.Contains(addrOf(b[12:16])):
			answers++
			in, out = x, b
		default:
			others++
			continue
		}
		v, got := p.send(in)
		require.Equal(t, Forwarded, v, "packet %d: %v", i+1, p.drops())
		require.Equal(t, out, got, "packet %d", i+1)
		var view wire.View
		require.Equal(t, wire.OK, wire.Parse(got, &view))
		require.Equal(t, view.SumOK(in), view.SumOK(got), "packet %d: a wrong checksum stays wrong", i+1)
	}
	require.Equal(t, []int{24, 19, 136}, []int{requests, answers, others})
}
