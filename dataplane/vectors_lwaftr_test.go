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

// lwaftrKinds says by their place in the file what the pairs are to a Plane: packets that go into a tunnel, an error about such ones too; fragments that do, each by itself; packets that
// come out of a tunnel, which itself may be in fragments; what nobody gets, since it is for no client, from no client's router, or no tunnel; and echo requests that are answered.
var lwaftrKinds = map[string][]int{
	"into a tunnel":           {1, 2, 10, 13, 36, 39, 42, 47, 51},
	"fragments into a tunnel": {9, 38},
	"out of a tunnel":         {12, 14, 15, 16, 22, 37, 48},
	"nobody's":                {0, 18, 19, 21, 23, 29, 34, 35, 40, 41, 45, 49, 50},
	"echo":                    {52, 53, 54, 55},
}

// lwaftrElsewhere are the pairs of dataplane/afpacket's tests: solicitations for an address.
var lwaftrElsewhere = []int{3, 4}

// lwaftrLeft says why the others do not apply.
var lwaftrLeft = map[string][]int{
	"next hops are the kernel's: it asks for their addresses, and what is for one that is not known goes nowhere":             {5, 6, 7, 8},
	"a tunnel to a node leaves the time to live of what is in it alone, as it leaves everything (DSR and NAT count it)":       {11},
	"what is too large for a tunnel is sent in fragments of the tunnel all the same, whether it must not be fragmented":       {17},
	"no policy or no node: dropped and counted, without an ICMP error (those without one are \"nobody's\")":                   {20, 24, 25},
	"what comes out of a tunnel goes on without a decision, and so not into another tunnel (hairpinning)":                     {26, 27, 28, 30, 31, 32, 33},
	"an error about a tunnel's outer packet is for the balancer, whose host gets it; the sender of the inner one is not told": {43, 44, 46},
}

func TestVectorsLwaftr(t *testing.T) {
	pairs := jsonLines[lwaftrPair](t, "packets/snabb_lwaftr_pairs.jsonl")
	seen := slices.Clone(lwaftrElsewhere)
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
				case "fragments into a tunnel":
					fragmentsIntoLwaftrTunnel(t, &pairs[i])
				case "out of a tunnel":
					outOfLwaftrTunnel(t, &pairs[i])
				case "nobody's":
					nobodysLwaftr(t, &pairs[i])
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
	p, want := lwaftrPlane(t, v)
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
		require.Len(t, got[i], len(want[i]))
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
		sameButOneHop(t, want[i][40:], got[i][40:])
	}
}

// sameButOneHop wants the packet as it came, from whose time to live an AFTR takes one.
func sameButOneHop(t *testing.T, aftr, got []byte) {
	t.Helper()
	got = bytes.Clone(got)
	var view wire.View
	require.Equal(t, wire.OK, wire.Parse(got, &view))
	require.True(t, view.HeaderSumOK(got))
	view.SetTTL(got, view.TTL(got)-1)
	require.Equal(t, aftr, got)
}

// fragmentsIntoLwaftrTunnel: an AFTR puts fragments together first. A Plane sends each in a tunnel of its own, to the same end, and they make the same packet there.
func fragmentsIntoLwaftrTunnel(t *testing.T, v *lwaftrPair) {
	p, want := lwaftrPlane(t, v)
	whole := want[0]
	if len(want) > 1 {
		whole = join(t, want)
	}
	var inner [][]byte
	for _, text := range v.In4 {
		link, in := frameOf(t, text)
		verdict, out := p.sendAll(append(bytes.Clone(link), in...))
		require.Equal(t, Forwarded, verdict[0], "%v", p.drops())
		require.Len(t, out, 1)
		b := out[0][len(link):]
		require.Equal(t, whole[8:40], b[8:40], "the ends of the tunnel")
		require.Equal(t, in, b[40:])
		inner = append(inner, b[40:])
	}
	got := join(t, inner)
	copy(whole[40+4:], got[4:6]) // an AFTR gives the packet an identification
	binary.BigEndian.PutUint16(whole[40+10:], 0)
	binary.BigEndian.PutUint16(whole[40+10:], wire.Checksum(whole[40:60]))
	sameButOneHop(t, whole[40:], got)
}

// nobodysLwaftr: nothing comes out, and why is counted.
func nobodysLwaftr(t *testing.T, v *lwaftrPair) {
	in := slices.Concat(v.In4, v.In6)
	_, first := frameOf(t, in[0])
	own, b4 := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::b4")
	if first[0]>>4 == 6 {
		own = addrOf(first[24:40])
	}
	ids := new(steering.IDs)
	e, err := intercept.New(&intercept.Config{IDs: ids, Nodes: []intercept.Node{{Node: steering.Node{Name: "b4", Addr: ap(b4, 0)}}}})
	require.NoError(t, err)
	var rules []policy.Rule[*Service]
	for _, vip := range []string{"178.79.150.233", "178.79.150.15"} { // those of the binding table
		pool := mustPool(t, ids, steering.Maglev, steering.Node{Name: vip, Addr: ap(b4, 0)})
		rules = append(rules, rule(vip, vip+" tcp/80", &Service{Name: vip, Pool: pool, Forward: Tunnelled, MidStream: Silent}))
	}
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) {
		c.Link, c.NextHop, c.Addrs = Link{Ethernet: true}, lwaftrHops(0), []netip.Addr{own}
		c.Policies, c.PingNodes, c.Foreign, c.Intercept = table(t, rules...), -1, Drop, &Intercept{Engine: e}
	})
	for _, text := range in {
		link, b := frameOf(t, text)
		verdict, out := p.sendAll(append(bytes.Clone(link), b...))
		require.Empty(t, out, "%v", p.drops())
		require.Contains(t, []Verdict{Dropped, Held}, verdict[0])
		if verdict[0] == Held { // fragments without a first one
			require.NotZero(t, len(p.fragments.m))
		}
	}
	p.now = p.now.Add(2 * fragmentLife)
	for p.Step(p.now) {
	}
	dropped := uint64(0)
	for _, n := range p.drops() {
		dropped += n
	}
	require.EqualValues(t, len(in), dropped, "%v", p.drops())
}

// lwaftrPlane has the tunnels that packets of a pair go into, and returns what came out of an AFTR.
func lwaftrPlane(t *testing.T, v *lwaftrPair) (p *testPlane, want [][]byte) {
	var own netip.Addr
	byVIP := map[netip.Addr]netip.Addr{}
	for _, text := range v.Out6 {
		_, b := frameOf(t, text)
		want = append(want, b)
		own = netip.AddrFrom16([16]byte(b[8:24]))
		if at := 40; b[6] == 4 || b[6] == wire.ProtoFragment && binary.BigEndian.Uint16(b[42:])>>3 == 0 {
			if b[6] == wire.ProtoFragment {
				at += 8
			}
			byVIP[addrOf(b[at+16:at+20])] = netip.AddrFrom16([16]byte(b[24:40]))
		}
	}
	p = newPlane(t, families2()[0], func(c *Config, _ *Service) {
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
	return p, want
}

// outOfLwaftrTunnel: the packet of a node, taken out of its tunnel, which is put together if it is in fragments, and routed: the very same packets, but for what routing takes off the time to live, and for
// the identification of fragments, which is the sender's. VLAN tags stay as they came, an AFTR's interfaces have their own.
func outOfLwaftrTunnel(t *testing.T, v *lwaftrPair) {
	link, in := frameOf(t, v.In6[0])
	ins := [][]byte{in}
	for _, text := range v.In6[1:] { // of the tunnel
		_, b := frameOf(t, text)
		ins = append(ins, b)
	}
	from, own := netip.AddrFrom16([16]byte(in[8:24])), netip.AddrFrom16([16]byte(in[24:40]))
	e, err := intercept.New(&intercept.Config{IDs: new(steering.IDs), Nodes: []intercept.Node{{Node: steering.Node{Name: "b4", Addr: ap(from, 0)}}}})
	require.NoError(t, err)
	p, err := New(&Config{Link: Link{Ethernet: true}, NextHop: lwaftrHops(v.mtu("external-interface")), Addrs: []netip.Addr{own}, Intercept: &Intercept{Engine: e}})
	require.NoError(t, err)
	defer p.Close()
	q := &testPlane{Plane: p, t: t, w: p.own}
	var out [][]byte
	for i, in := range ins {
		verdict, outs := q.sendAll(append(bytes.Clone(link), in...))
		require.Equal(t, map[bool]Verdict{true: Passed, false: Held}[i == len(ins)-1], verdict[0], "%v", q.drops())
		out = append(out, outs...)
	}
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
