package dataplane

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/intercept"
)

// lwaftrPair is what an AFTR made of some frames: IPv4 in IPv6 towards its clients' routers (B4), and out of it.
type lwaftrPair struct {
	Name  string
	In4   []string `json:"in_v4_hex"`
	In6   []string `json:"in_v6_hex"`
	Out4  []string `json:"out_v4_hex"`
	Out6  []string `json:"out_v6_hex"`
	Facts map[string]struct {
		MTU json.Number `json:"mtu"`
	} `json:"config_facts"`
}

func (v *lwaftrPair) mtu(side string) int {
	if n, err := v.Facts[side].MTU.Int64(); err == nil {
		return int(n)
	}
	return 1500
}

// lwaftrKinds says by their place in the file what the pairs are to a Plane: packets that go into a tunnel, that come out of one, and echo requests that
// are answered.
var lwaftrKinds = map[string][]int{
	"into a tunnel":   {1, 2, 10, 13, 36, 39, 47, 51},
	"out of a tunnel": {12, 22, 48},
	"echo":            {52, 53, 54, 55},
}

// lwaftrLeft says why the others do not apply.
var lwaftrLeft = map[string][]int{
	"addresses of the link are the device's or the host's":                                         {3, 4, 5, 6, 7, 8},
	"fragments are sent on, not put together":                                                      {0, 9, 14, 15, 16, 37, 38},
	"a tunnel leaves the time to live of what is in it alone":                                      {11, 30, 31},
	"what is too large and must not be fragmented is sent in fragments of the tunnel all the same": {17},
	"no policy or no node: dropped and counted, without an ICMP error":                             {18, 19, 20, 21, 23, 24, 25, 29, 34, 35, 40, 41, 45, 49, 50},
	"what comes out of a tunnel is sent on without a decision":                                     {26, 27, 28, 32, 33},
	"errors about the way to a node are the node's: there is no session of an AFTR's binding":      {42, 43, 44, 46},
}

func TestVectorsLwaftr(t *testing.T) {
	pairs := jsonLines[lwaftrPair](t, "packets/snabb_lwaftr_pairs.jsonl")
	var seen []int
	for _, list := range lwaftrLeft {
		seen = append(seen, list...)
	}
	for kind, list := range lwaftrKinds {
		seen = append(seen, list...)
		for _, i := range list {
			t.Run(kind+"/"+pairs[i].Name, func(t *testing.T) {
				switch kind {
				case "into a tunnel":
					intoLwaftrTunnel(t, &pairs[i])
				case "out of a tunnel":
					outOfLwaftrTunnel(t, &pairs[i])
				default:
					lwaftrEcho(t, &pairs[i])
				}
			})
		}
	}
	slices.Sort(seen)
	for i := range pairs {
		require.Equal(t, i, seen[i], "every pair is used, or said not to be, once")
	}
	require.Len(t, seen, len(pairs))
}

// frameOf splits a frame into its link header and the packet.
func frameOf(t *testing.T, text string) (link, packet []byte) {
	b := unhex(t, text)
	e, s := wire.ParseEthernet(b)
	require.Equal(t, wire.OK, s)
	packet = packetOf(b)
	return b[:e.L3], packet
}

// lwaftrHops leads everywhere, by one hop of an MTU.
func lwaftrHops(mtu int) func(netip.Addr) (Hop, bool) {
	return func(netip.Addr) (Hop, bool) { return Hop{Port: 1, Src: [6]byte{2}, Dst: [6]byte{4}, MTU: mtu}, true }
}

// intoLwaftrTunnel: the same outer headers, but for the hop limit, around the packet as it came: an AFTR takes one off its time to live. Fragments of the tunnel are
// of the same sizes and make the same packet.
func intoLwaftrTunnel(t *testing.T, v *lwaftrPair) {
	var own netip.Addr
	byVIP := map[netip.Addr]netip.Addr{}
	var want [][]byte
	var sizes []int
	for _, text := range v.Out6 {
		_, b := frameOf(t, text)
		want, sizes = append(want, b), append(sizes, len(b))
		own = netip.AddrFrom16([16]byte(b[8:24]))
		if at := 40; b[6] == 4 || b[6] == wire.ProtoFragment && binary.BigEndian.Uint16(b[42:])>>3 == 0 {
			if b[6] == wire.ProtoFragment {
				at += 8
			}
			byVIP[addrOf(b[at+16:at+20])] = netip.AddrFrom16([16]byte(b[24:40]))
		}
	}
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) {
		c.Link, c.NextHop, c.Addrs = Link{Ethernet: true}, lwaftrHops(0), []netip.Addr{own}
		var rules []policy.Rule[*Service]
		ids := new(steering.IDs)
		for vip, b4 := range byVIP {
			pool := mustPool(t, ids, steering.Maglev, steering.Node{Name: b4.String(), Addr: ap(b4, 0)})
			rules = append(rules, rule(vip.String(), vip.String(), &Service{
				Name: vip.String(), Pool: pool, Forward: Tunnelled, MTU: v.mtu("internal-interface"), MidStream: Reselect,
			}))
		}
		c.Policies = table(t, rules...)
	})
	var got [][]byte
	for _, text := range v.In4 {
		link, in := frameOf(t, text)
		verdict, out := p.sendAll(append(bytes.Clone(link), in...))
		require.Equal(t, Forwarded, verdict[0], "%v", p.drops())
		for _, b := range out {
			require.Equal(t, link[12:len(link)-2], b[12:len(link)-2], "VLAN tags stay")
			got = append(got, b[len(link):])
		}
	}
	require.Len(t, got, len(want))
	for i := range got {
		require.Len(t, got[i], sizes[i])
		require.Equal(t, want[i][8:40], got[i][8:40], "the ends of the tunnel")
		require.Equal(t, want[i][:2], got[i][:2], "version and traffic class")
	}
	if want[0][6] == wire.ProtoFragment {
		for i := range got {
			require.Equal(t, want[i][40:44], got[i][40:44], "next header, offset and more")
		}
		want, got = [][]byte{join(t, want)}, [][]byte{join(t, got)}
	}
	for i := range want {
		x, y := bytes.Clone(want[i][40:]), bytes.Clone(got[i][40:])
		var view wire.View
		require.Equal(t, wire.OK, wire.Parse(y, &view))
		require.True(t, view.HeaderSumOK(y))
		view.SetTTL(y, view.TTL(y)-1)
		require.Equal(t, x, y)
	}
}

// outOfLwaftrTunnel: the packet of a node, taken out of its tunnel and routed: the very same packets, but for what routing takes off the time to live, and for
// the identification of fragments, which is the sender's. VLAN tags stay as they came, an AFTR's interfaces have their own.
func outOfLwaftrTunnel(t *testing.T, v *lwaftrPair) {
	link, in := frameOf(t, v.In6[0])
	from, own := netip.AddrFrom16([16]byte(in[8:24])), netip.AddrFrom16([16]byte(in[24:40]))
	e, err := intercept.New(&intercept.Config{IDs: new(steering.IDs), Nodes: []intercept.Node{{Node: steering.Node{Name: "b4", Addr: ap(from, 0)}}}})
	require.NoError(t, err)
	p, err := New(&Config{Link: Link{Ethernet: true}, NextHop: lwaftrHops(v.mtu("external-interface")), Addrs: []netip.Addr{own}, Intercept: &Intercept{Engine: e}})
	require.NoError(t, err)
	defer p.Close()
	q := &testPlane{Plane: p, t: t, w: p.own}
	verdict, out := q.sendAll(append(bytes.Clone(link), in...))
	require.Equal(t, Passed, verdict[0], "%v", q.drops())
	require.Len(t, out, len(v.Out4))
	for i, text := range v.Out4 {
		wantLink, want := frameOf(t, text)
		require.Equal(t, wantLink[len(wantLink)-2:], out[i][len(link)-2:len(link)], "the type of the frame")
		require.Equal(t, link[12:len(link)-2], out[i][12:len(link)-2])
		got := out[i][len(link):]
		_, x := parseFlow(want)
		_, y := parseFlow(got)
		require.True(t, y.HeaderSumOK(got))
		x.SetTTL(want, x.TTL(want)-1)
		if x.Has(wire.Fragment) {
			x.FragID, y.FragID = 1, 1
			x.SetFragID(want, 0)
			y.SetFragID(got, 0)
			copy(want[10:12], got[10:12])
		}
		require.Equal(t, want, got)
	}
}

func lwaftrEcho(t *testing.T, v *lwaftrPair) {
	in, want := slices.Concat(v.In4, v.In6), slices.Concat(v.Out4, v.Out6)
	link, b := frameOf(t, in[0])
	_, x := frameOf(t, want[0])
	_, view := parseFlow(b)
	fam := families2()[map[uint8]int{4: 0, 6: 1}[view.Version]]
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.Link, c.NextHop = Link{Ethernet: true}, lwaftrHops(0)
		c.Policies = table(t, rule("r", addrOf(view.Dst(b)).String()+" tcp/80", s))
	})
	verdict, out := p.sendAll(append(bytes.Clone(link), b...))
	require.Equal(t, Answered, verdict[0], "%v", p.drops())
	require.Equal(t, link[6:12], out[0][:6], "to who asked")
	requireSameButTTL(t, v.Name, x, out[0][len(link):])
}
