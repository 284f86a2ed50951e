package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// asker is a session of datagrams. Each is answered, and always by the same server.
type asker struct {
	answers atomic.Int64
	bad     chan error
}

func (w *world) asker(t *testing.T, to netip.AddrPort) *asker {
	t.Helper()
	a := &asker{bad: make(chan error, 1)}
	c, err := w.client.DialContext(context.Background(), "udp", to.String())
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	go func() {
		defer close(done)
		server := -1
		got := make([]byte, 100)
		for n := byte(0); ; n++ {
			for deadline := time.Now().Add(60 * time.Second); ; {
				if _, err := c.Write([]byte{n}); errors.Is(err, net.ErrClosed) {
					return
				}
				_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
				k, err := c.Read(got)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil && k == 2 && got[1] == n {
					break
				}
				if time.Now().After(deadline) {
					a.bad <- fmt.Errorf("no answer to datagram %d: %w", n, err)
					return
				}
			}
			if server >= 0 && server != int(got[0]) {
				a.bad <- fmt.Errorf("server %d answers, before it was %d", got[0], server)
				return
			}
			server = int(got[0])
			a.answers.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return a
}

// answer has server i send datagrams back after its own number.
func (w *world) answer(t *testing.T, i int, v6 bool, port uint16) {
	t.Helper()
	p, err := w.servers[i].ListenPacket(context.Background(), "udp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := p.ReadFrom(b[1:])
			if err != nil {
				return
			}
			b[0] = byte(i)
			_, _ = p.WriteTo(b[:1+n], from)
		}
	}()
}

// TestNetnsReconfigured changes everything that can change while connections and datagrams go on: services, farms, policies, limits, modes, and what
// looks on. No connection is reset, none gets another server, no byte is lost; and what is new goes by what was changed.
func TestNetnsReconfigured(t *testing.T) {
	w := newWorld(t, how{
		queues: 2, own: []netip.Addr{waddr(false, 0, 1), waddr(true, 0, 1)},
		routes: []netip.Prefix{netip.PrefixFrom(wlocal(false), 32), netip.PrefixFrom(wlocal(true), 128)},
		third:  func(s *dataplane.Service, v6 bool) { s.Forward, s.Locals = dataplane.FullNAT, []netip.Addr{wlocal(v6)} },
	})
	both := []bool{false, true}
	// What is in force: a service of each virtual address, and the rules that lead to it.
	services := map[netip.Addr]dataplane.Service{}
	for _, v6 := range both {
		for _, vip := range []netip.Addr{wvip(v6), wvip3(v6)} {
			name := fmt.Sprintf("all-%v", v6)
			s := dataplane.Service{Name: name, Pool: w.pools[v6], Mode: clienttable.ServerPerSession}
			if vip == wvip3(v6) {
				s.Name, s.Forward, s.Locals = "third-"+name, dataplane.FullNAT, []netip.Addr{wlocal(v6)}
			}
			services[vip] = s
		}
	}
	type rules = []policy.Rule[*dataplane.Service]
	put := func(s map[netip.Addr]dataplane.Service, more ...policy.Rule[*dataplane.Service]) {
		t.Helper()
		for vip, svc := range s {
			m := policy.Match{Dst: netip.PrefixFrom(vip, vip.BitLen())}
			more = append(more, policy.Rule[*dataplane.Service]{Name: svc.Name, Match: m, Value: &svc})
		}
		table, err := policy.Compile(nil, more...)
		require.NoError(t, err)
		require.NoError(t, w.plane.Apply(table))
	}
	// change puts changed copies in force.
	change := func(f func(s *dataplane.Service, v6 bool)) {
		t.Helper()
		changed := maps.Clone(services)
		for vip, s := range changed {
			f(&s, vip.Is6())
			changed[vip] = s
		}
		put(changed)
	}
	pool := func(v6 bool, m steering.Metric, nodes ...steering.Node) *steering.Pool {
		t.Helper()
		p, err := steering.NewPool(&steering.Config{Metric: m, IDs: w.ids}, nodes...)
		require.NoError(t, err)
		return p
	}
	setNodes := func(f func(i int, n *steering.Node)) {
		t.Helper()
		for _, v6 := range both {
			nodes := append([]steering.Node(nil), w.nodes[v6]...)
			for i := range nodes {
				f(i, &nodes[i])
			}
			require.NoError(t, w.plane.SetNodes(w.pools[v6], nodes...))
		}
	}
	// next is what becomes of a connection that is new.
	next := func(vip netip.Addr) dataplane.Explanation {
		t.Helper()
		e, err := w.plane.ExplainFlow(6, netip.AddrPortFrom(waddr(vip.Is6(), 0, 2), 999), netip.AddrPortFrom(vip, 5070))
		require.NoError(t, err)
		return e
	}
	all := func(f func(vip netip.Addr)) {
		for _, v6 := range both {
			f(wvip(v6))
			f(wvip3(v6))
		}
	}
	refused := func(why dataplane.Reason) {
		t.Helper()
		all(func(vip netip.Addr) {
			e := next(vip)
			require.Equal(t, dataplane.Dropped, e.Verdict, "%v", e)
			require.Equal(t, why, e.Reason, "%v", e)
		})
	}
	leads := func(node string) {
		t.Helper()
		all(func(vip netip.Addr) {
			e := next(vip)
			require.Equal(t, dataplane.Forwarded, e.Verdict, "%v", e)
			require.Equal(t, fmt.Sprint(node, "-", vip.Is6()), e.Node, "%v", e)
		})
	}

	var crowds []*crowd
	var askers []*asker
	for _, v6 := range both {
		for i := range w.servers {
			w.serve(t, i, v6, 5070)
			w.answer(t, i, v6, 5071)
		}
	}
	all(func(vip netip.Addr) {
		crowds = append(crowds, w.crowd(t, netip.AddrPortFrom(vip, 5070), 6, 30*time.Millisecond))
		for range 2 {
			askers = append(askers, w.asker(t, netip.AddrPortFrom(vip, 5071)))
		}
	})
	goOn(t, crowds, "at first", 1)
	resets := w.plane.Stats().Resets
	onto := func() (on []int32) {
		for _, c := range crowds {
			for i := range c.on {
				on = append(on, c.on[i].Load())
			}
		}
		return on
	}
	before := onto()
	still := func(what string) {
		t.Helper()
		var was []int64
		for _, a := range askers {
			was = append(was, a.answers.Load())
		}
		goOn(t, crowds, what, 2)
		for i, a := range askers {
			for deadline := time.Now().Add(60 * time.Second); a.answers.Load() < was[i]+2; time.Sleep(time.Millisecond) {
				select {
				case err := <-a.bad:
					require.NoError(t, err, what)
				default:
				}
				require.True(t, time.Now().Before(deadline), "%s: datagrams make no progress", what)
			}
		}
		require.Equal(t, before, onto(), "%s: servers change", what)
		require.Equal(t, resets, w.plane.Stats().Resets, what)
		for _, c := range crowds {
			require.Zero(t, c.ended.Load(), what)
		}
	}

	for _, step := range []struct {
		what string
		do   func()
	}{
		// Services.
		{"the same again", func() { put(services) }},
		{"other names", func() {
			change(func(s *dataplane.Service, _ bool) { s.Name = "renamed-" + s.Name })
			all(func(vip netip.Addr) { require.Equal(t, "renamed-"+services[vip].Name, next(vip).Service) })
		}},
		{"other times and actions", func() {
			change(func(s *dataplane.Service, _ bool) {
				s.Ageing = clienttable.Ageing{Idle: time.Hour, SYN: time.Second, Linger: time.Second, CloseAtAgeing: clienttable.CloseBoth}
				s.MidStream, s.ServerLost, s.MTU, s.ClientBits4, s.ClientBits6 = dataplane.Silent, dataplane.Reselect, 1400, 24, 64
			})
		}},
		{"clients bound to a node", func() {
			change(func(s *dataplane.Service, v6 bool) {
				s.Static = []dataplane.Static{{Clients: netip.PrefixFrom(waddr(v6, 0, 2), waddr(v6, 0, 2).BitLen()), Node: fmt.Sprint("server1-", v6)}}
			})
			leads("server1")
		}},
		{"more nodes needed than there are", func() {
			change(func(s *dataplane.Service, _ bool) { s.MinNodes = 3 })
			refused(dataplane.TooFewNodes)
		}},
		// Modes: of the sessions, of forwarding, of binding.
		{"every session mode", func() {
			for m := clienttable.EntryPerSession; m <= clienttable.RemoveOnEndServerPerSession; m++ {
				change(func(s *dataplane.Service, _ bool) { s.Mode = m })
				still(m.String())
			}
		}},
		{"NAT for full NAT and the other way round", func() {
			change(func(s *dataplane.Service, v6 bool) {
				if s.Forward == dataplane.NAT {
					s.Forward, s.Locals = dataplane.FullNAT, []netip.Addr{wlocal(v6)}
				} else {
					s.Forward, s.Locals = dataplane.NAT, nil
				}
			})
			for _, v6 := range both {
				require.Equal(t, wlocal(v6), next(wvip(v6)).Out.Src().Addr())
				require.Equal(t, waddr(v6, 0, 2), next(wvip3(v6)).Out.Src().Addr())
			}
		}},
		{"tunnels", func() {
			change(func(s *dataplane.Service, _ bool) {
				s.Forward, s.Locals, s.Tunnel = dataplane.Tunnelled, nil, dataplane.Tunnel{Kind: dataplane.GRE, Key: 5}
			})
			all(func(vip netip.Addr) { require.EqualValues(t, 47, next(vip).Out.Protocol()) })
		}},
		{"routed", func() {
			change(func(s *dataplane.Service, _ bool) { s.Forward, s.Locals, s.Pool = dataplane.Route, nil, nil })
			all(func(vip netip.Addr) { require.Equal(t, vip, next(vip).Out.Dst().Addr()) })
		}},
		{"delayed binding", func() {
			change(func(s *dataplane.Service, _ bool) { s.Delay = &dataplane.Delay{} })
			all(func(vip netip.Addr) { require.Equal(t, dataplane.Answered, next(vip).Verdict) })
		}},
		{"and none", func() { put(services) }},
		// Farms.
		{"another farm", func() {
			change(func(s *dataplane.Service, v6 bool) {
				s.Pool = pool(v6, steering.Maglev, steering.Node{Name: fmt.Sprint("another-", v6), Addr: netip.AddrPortFrom(waddr(v6, 2, 2), 0)})
			})
			leads("another")
		}},
		{"another metric for the same farm", func() {
			change(func(s *dataplane.Service, v6 bool) { s.Pool = pool(v6, steering.Hash, w.nodes[v6][1]) })
			leads("server1")
		}},
		{"the first farm", func() { put(services) }},
		{"other shares", func() {
			setNodes(func(i int, n *steering.Node) { n.Weight = []int{steering.ZeroWeight, 7}[i] })
			leads("server1")
		}},
		{"one drains", func() {
			setNodes(func(i int, n *steering.Node) { n.Admin = []steering.AdminState{steering.Enabled, steering.Draining}[i] })
			leads("server0")
		}},
		{"one is a backup", func() {
			setNodes(func(i int, n *steering.Node) { n.Backup = i == 0 })
			leads("server1")
		}},
		{"one comes, and goes down", func() {
			for _, v6 := range both {
				more := steering.Node{Name: fmt.Sprint("more-", v6), Addr: netip.AddrPortFrom(waddr(v6, 3, 2), 0)}
				require.NoError(t, w.plane.SetNodes(w.pools[v6], append(append([]steering.Node(nil), w.nodes[v6]...), more)...))
				require.Positive(t, w.plane.SetUp(more.Name, false))
			}
		}},
		// Limits.
		{"fewer sessions than there are", func() {
			setNodes(func(_ int, n *steering.Node) { n.MaxSessions = 1 })
			refused(dataplane.Overload)
		}},
		{"no limits", func() { setNodes(func(int, *steering.Node) {}) }},
		// Policies.
		{"more specific ones for others", func() {
			var more rules
			for _, v6 := range both {
				for port := range uint16(500) {
					m := policy.Match{Dst: netip.PrefixFrom(wvip(v6), wvip(v6).BitLen()), Protocol: policy.TCP, DstPort: policy.Port(10000 + port)}
					more = append(more, policy.Rule[*dataplane.Service]{Name: fmt.Sprint(v6, port), Match: m, Value: &dataplane.Service{Name: "on", Forward: dataplane.Route}})
				}
			}
			for i := range more {
				more[i].Value = more[0].Value
			}
			put(services, more...)
		}},
		{"the other's service", func() {
			swapped := map[netip.Addr]dataplane.Service{}
			for _, v6 := range both {
				swapped[wvip(v6)], swapped[wvip3(v6)] = services[wvip3(v6)], services[wvip(v6)]
			}
			put(swapped)
		}},
		{"no virtual address at all", func() {
			put(nil)
			all(func(vip netip.Addr) { require.Equal(t, dataplane.Passed, next(vip).Verdict) })
		}},
		{"all again", func() { put(services) }},
		// The plane itself.
		{"workers", func() {
			for _, n := range []int{4, 1, 2, 0} {
				require.NoError(t, w.plane.SetWorkers(n))
				still(fmt.Sprint(n, " workers"))
			}
		}},
		{"a watch on everything", func() {
			x, err := flowexport.New(&flowexport.Config{Collector: io.Discard})
			require.NoError(t, err)
			require.NoError(t, w.plane.SetFlowExport(&dataplane.FlowExport{Exporter: x, All: true, Active: time.Second, Inactive: time.Second}))
			var file bytes.Buffer
			c, err := w.plane.Capture(&file, nil)
			require.NoError(t, err)
			still("watched")
			c.Stop()
			require.NoError(t, c.Run(t.Context()))
			require.Positive(t, c.Stats().Packets)
			require.NoError(t, w.plane.SetFlowExport(nil))
			require.Positive(t, w.plane.FlowStats().Reported)
		}},
		{"saved", func() {
			_, err := w.plane.WriteTo(io.Discard)
			require.NoError(t, err)
		}},
		{"draining", func() {
			w.plane.Drain(true)
			refused(dataplane.Draining)
		}},
		{"no longer", func() {
			w.plane.Drain(false)
			all(func(vip netip.Addr) { require.Equal(t, dataplane.Forwarded, next(vip).Verdict) })
		}},
	} {
		step.do()
		still(step.what)
	}
	// And what is new is served.
	all(func(vip netip.Addr) {
		c, _, err := w.dialTo(netip.AddrPortFrom(vip, 5070))
		require.NoError(t, err)
		c.Close()
	})
}
