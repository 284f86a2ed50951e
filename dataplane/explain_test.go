package dataplane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/policy"
)

func TestExplain(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		before := p.Stats()
		e, err := p.ExplainFlow(wire.ProtoTCP, client, vip)
		require.NoError(t, err)
		require.Equal(t, Forwarded, e.Verdict)
		require.False(t, e.Known)
		require.Equal(t, "web", e.Service)
		require.Equal(t, policy.Matched, e.Policy.Outcome)
		require.Equal(t, e.Node, e.Steering.Name)
		require.Equal(t, before, p.Stats(), "asking changes nothing")
		for _, st := range p.pool.All() {
			require.Zero(t, st.Sessions)
		}
		// What it says happens.
		node := p.open(client)
		require.Equal(t, node, e.Out.Dst())
		e = p.Explain(tcp(client, vip, "A", 101, 501, "x"))
		require.True(t, e.Known)
		require.Nil(t, e.Policy)
		require.Equal(t, node, e.Out.Dst())
		e = p.Explain(tcp(node, client, "A", 501, 101, "x"))
		require.True(t, e.Known && e.Backwards)
		require.Equal(t, vip, e.Out.Src())
		// A client that is remembered.
		e, _ = p.ExplainFlow(wire.ProtoTCP, ap(fam.client, 40001), vip)
		require.Equal(t, node, e.Out.Dst())
		require.Nil(t, e.Steering)
		require.Contains(t, e.String(), "remembered for node")
		// Drops.
		for proto, want := range map[uint8]Reason{wire.ProtoTCP: NoPolicy, wire.ProtoUDP: NoPolicy} {
			e, _ = p.ExplainFlow(proto, client, ap(fam.vip, 81))
			require.Equal(t, Dropped, e.Verdict)
			require.Equal(t, want, e.Reason)
		}
		e = p.Explain([]byte{0x45, 0})
		require.Equal(t, Truncated, e.Reason)
		e = p.Explain(tcp(ap(fam.client2, 1), vip, "A", 1, 1, "x"))
		require.Equal(t, Answered, e.Verdict)
		e = p.Explain(unreachable(fam.router, fam.client, tcp(client, node, "A", 101, 501, "x"), 8))
		require.Equal(t, Forwarded, e.Verdict)
		require.True(t, e.Known)
		p.SetUp("n1", false)
		p.SetUp("n2", false)
		e, _ = p.ExplainFlow(wire.ProtoTCP, ap(fam.client2, 1), vip)
		require.Equal(t, NoNode, e.Reason)
		_, err = p.ExplainFlow(wire.ProtoTCP, ap(families2()[0].client, 1), ap(families2()[1].vip, 1))
		require.Error(t, err)
		t.Log(e)
	})
}

func TestEnumsRoundTrip(t *testing.T) {
	for r := range numReasons {
		b, err := r.MarshalText()
		require.NoError(t, err)
		var x Reason
		require.NoError(t, x.UnmarshalText(b))
		require.Equal(t, r, x)
	}
	require.Equal(t, int(numReasons), reasonNames.Len())
	for v := range Held + 1 {
		b, err := v.MarshalText()
		require.NoError(t, err)
		var x Verdict
		require.NoError(t, x.UnmarshalText(b))
		require.Equal(t, v, x)
	}
	require.Error(t, new(Verdict).UnmarshalText([]byte("nonsense")))
	_, err := numReasons.MarshalText()
	require.Error(t, err)
	require.Equal(t, "Reason(250)", Reason(250).String())
}

func TestFaultsAreReportedAtOnce(t *testing.T) {
	_, err := New(&Config{MaxSessions: -1, MaxAssociations: 1 << 30, Foreign: 9, Devices: []Device{nil}, Link: Link{Ethernet: true}})
	require.ErrorIs(t, err, ErrInvalid)
	for _, field := range []string{"MaxSessions = -1", "MaxAssociations", "Foreign", "Devices[0]", "NextHop"} {
		require.ErrorContains(t, err, field)
	}
	fam := families2()[0]
	p := newPlane(t, fam)
	bad := &Service{ClientBits4: 33, MidStream: 7, Mode: 99}
	twin := &Service{Name: "web", Pool: p.pool}
	err = p.Apply(table(t, rule("a", fam.vip.String()+" tcp/1", bad), rule("b", fam.vip.String()+" tcp/2", p.svc), rule("c", fam.vip.String()+" tcp/3", twin),
		rule("d", families2()[1].vip.String(), p.svc), rule("e", fam.vip.String()+" tcp/5", nil)))
	for _, field := range []string{"ClientBits4", "MidStream", "Mode", "Name", "Pool", `rule "c"`, `rule "d"`, `rule "e"`} {
		require.ErrorContains(t, err, field)
	}
	// Nothing has changed.
	p.open(ap(fam.client, 1))
}

// A session is not kept alive by being asked about.
func TestExplainKeepsNothingAlive(t *testing.T) {
	inBubbles(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		v, _ := p.send(udp(client, vip, "x"))
		require.Equal(t, Forwarded, v)
		for range 10 {
			time.Sleep(10 * time.Second)
			p.Explain(udp(client, vip, "x"))
		}
		_, ok := p.Session(wire.ProtoUDP, client, vip)
		require.False(t, ok)
	})
}
