package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/splice"
)

// A node that takes long to answer is waited for as long as Limits.ServerTime says, whatever the life of half-open sessions is.
func TestDelayedNodeAnswersLate(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, full := range []bool{false, true} {
			p := newPlane(t, fam, delayed(Delay{Limits: splice.Limits{ServerTime: 30 * time.Second}}), func(_ *Config, s *Service) {
				s.Ageing.SYN = time.Second
				if full {
					s.Forward, s.Locals = FullNAT, []netip.Addr{fam.elsewhere}
				}
			})
			client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
			ours := p.hello(client, 1000)
			_, out := p.sendAll(tcp(client, vip, "PA", 1001, ours+1, "abc"))
			require.Len(t, out, 2)
			syn := out[0]
			if numbers(syn).Flags != splice.SYN {
				syn = out[1]
			}
			f, _ := parseFlow(syn)
			for range 29 {
				p.now = p.now.Add(time.Second)
				p.Step(p.now)
				_, out = p.sendAll()
				for _, b := range out {
					g, _ := parseFlow(b)
					require.Equal(t, f, g, "no other node, and no reset")
				}
			}
			_, reply := p.send(tcp(f.Dst, f.Src, "SA", 500, 1001, ""))
			require.Equal(t, "abc", string(numbers(reply).Payload))
			got := p.forwarded(tcp(f.Dst, f.Src, "A", 501, 1004, ""), vip, client)
			require.Equal(t, ours+1, numbers(got).Seq)
			for s := range p.Sessions() {
				require.Equal(t, clienttable.TCPEstablished, s.Phase)
			}
			require.Equal(t, 1, p.Stats().Sessions)
		}
	})
}

// A client whose request is longer than what is read of it learns that it may send on, although what says so is lost; until then the connection is held.
func TestDelayedClientsThatWaitAreTold(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, delayed(Delay{Limits: splice.Limits{Budget: 4}}))
		client, vip := ap(fam.client, 4000), ap(fam.vip, 80)
		ours := p.hello(client, 1000)
		_, node := p.request(client, 1000, ours, "abcd")
		_, out := p.send(tcp(client, vip, "A", 1005, ours+1, "e"))
		require.Zero(t, numbers(out).Window)
		require.EqualValues(t, 1005, numbers(out).Ack)
		_, outs := p.sendAll(tcp(node, client, "SA", 500, 1001, ""))
		require.Len(t, outs, 2, "what was read, and the window")
		p.forwarded(tcp(node, client, "A", 501, 1005, ""), vip, client)
		require.Equal(t, 1, p.Stats().Delay.Held)
		told := 0
		for range 20 {
			p.now = p.now.Add(50 * time.Millisecond)
			_, outs = p.sendAll()
			for _, b := range outs {
				f, _ := parseFlow(b)
				require.Equal(t, client, f.Dst)
				require.NotZero(t, numbers(b).Window)
				p.wellFormed(b, vip, client)
				told++
			}
		}
		require.NotZero(t, told)
		got := p.forwarded(tcp(client, vip, "PA", 1005, ours+1, "efgh"), client, node)
		require.Equal(t, "efgh", string(numbers(got).Payload))
		st := p.Stats().Delay
		require.Zero(t, st.Held)
		require.EqualValues(t, 1, st.Spliced)
	})
}
