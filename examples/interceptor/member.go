package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

const probeEvery = 200 * time.Millisecond

// member is a balancer of the cluster: the library's packages put together as a program of yours would.
type member struct {
	site   *site
	number int
	host   lab.StarHost
	lonely bool // asks nobody: to show that the verification notices
	alive  atomic.Bool

	cancel  context.CancelFunc
	done    sync.WaitGroup
	out     outlet
	engine  *intercept.Engine
	path    *path.Engine
	cluster *cluster.Cluster

	mu    sync.Mutex
	flows map[flowshare.Flow]string // which node a flow has

	// What is shown of it, over all its lives.
	state                                          atomic.Uint32 // an intercept.ClusterState
	redirected, bypassed, relayed, denied, learned atomic.Uint64
}

// start joins the cluster and begins to take packets.
func (m *member) start(ctx context.Context) (err error) {
	ctx, m.cancel = context.WithCancel(ctx)
	m.mu.Lock()
	m.flows = map[flowshare.Flow]string{}
	m.mu.Unlock()
	cfg := rules(m.site)
	if m.engine, err = intercept.New(cfg); err != nil {
		return err
	}
	if m.path, err = path.New(paths(m.site), uint64(m.number)+1, nil); err != nil {
		return err
	}
	settings, advisory := cluster.InterceptSettings(cfg)
	engine := m.engine
	m.state.Store(uint32(intercept.Steady))
	c := &cluster.Config{
		Name: "interceptor", Node: balancerName(m.number), Bind: netip.AddrPortFrom(m.host.Addr, portCluster), Network: m.host,
		Keys: [][]byte{[]byte("of this demonstration, only 1234")}, Topology: cluster.Quad, AllowFailure: cfg.AllowFailure,
		Settings: settings, Advisory: advisory, Logger: slog.New(slog.DiscardHandler),
		OnState: func(st intercept.ClusterState) {
			engine.SetCluster(st)
			m.state.Store(uint32(st))
		},
	}
	for i := range balancers {
		c.Members = append(c.Members, cluster.Peer{Name: balancerName(i), Pair: links[i/2]})
		if i != m.number {
			c.Join = append(c.Join, netip.AddrPortFrom(m.site.hosts[i].Addr, portCluster))
		}
	}
	if m.cluster, err = cluster.New(c); err != nil {
		return err
	}
	m.done.Go(func() { _ = m.cluster.Run(ctx) }) // ends with ctx, as in a crash
	m.done.Go(func() { _ = m.path.Run(ctx, m.probe) })
	if m.out, err = m.site.outlet(ctx, m.number); err != nil {
		return err
	}
	for port, take := range map[int]func(netip.Addr, []byte){
		portLAN:     func(_ netip.Addr, b []byte) { m.intercept(intercept.LAN, b) },
		portWAN:     func(_ netip.Addr, b []byte) { m.intercept(intercept.WAN, b) },
		portBack:    func(_ netip.Addr, b []byte) { m.back(b) },
		portChannel: func(_ netip.Addr, b []byte) { m.channel(b) },
	} {
		if err := m.site.receive(ctx, &m.done, m.number, port, take); err != nil {
			return err
		}
	}
	m.alive.Store(true)
	return nil
}

// crash ends everything at once, without a goodbye. What the balancer knew is lost.
func (m *member) crash() {
	m.alive.Store(false)
	m.cancel()
	m.done.Wait()
	m.out.Close()
}

// intercept decides about a packet that comes in on a side of the link.
func (m *member) intercept(from intercept.Side, b []byte) {
	p, err := parse(b)
	if err != nil {
		return
	}
	f := flowshare.MakeFlow(p.protocol(), p.src, p.dst)
	b = slices.Clone(b) // the answer may take a while
	m.mu.Lock()
	node, ok := m.flows[f]
	m.mu.Unlock()
	if ok || p.syn && from == intercept.LAN || m.lonely {
		m.decide(from, p, f, node, b)
		return
	}
	m.cluster.Find(p.protocol(), p.src, p.dst, func(node, _ string, ok bool) {
		if ok {
			m.learned.Add(1)
			m.mu.Lock()
			m.flows[f] = node
			m.mu.Unlock()
		}
		m.decide(from, p, f, node, b)
	})
}

// decide does with a packet what the rules say, or what was said of its flow.
func (m *member) decide(from intercept.Side, p packet, f flowshare.Flow, node string, b []byte) {
	q := &intercept.Packet{Src: p.src, Dst: p.dst, Protocol: p.protocol(), From: from, SYN: p.syn}
	q.Known, _ = m.engine.ID(node)
	d := m.engine.Decide(q)
	switch d.Action {
	case intercept.Deny:
		m.denied.Add(1)
		refusal := packet{src: p.dst, dst: p.src, tcp: true, rst: true, seq: p.seq}
		if r, err := refusal.bytes(); err == nil {
			m.out.send(m.site.hosts[hostLAN].Addr, portEnd, r)
		}
	case intercept.Redirect:
		m.redirected.Add(1)
		at, _ := m.engine.Addr(d.Node)
		if node == "" {
			node = nodeName(slices.IndexFunc(m.site.hosts[hostNode:hostGate], func(h lab.StarHost) bool { return h.Addr == at.Addr() }))
			m.mu.Lock()
			m.flows[f] = node
			m.mu.Unlock()
		}
		// Also of a flow that another one began: whoever forwards it says so.
		m.cluster.Announce(p.protocol(), p.src, p.dst, node, d.Rule)
		m.out.send(at.Addr(), portNode, append(m.way(from, p, d), b...))
	default:
		m.bypassed.Add(1)
		m.leave(from, b)
	}
}

// way says what the node is to do with a packet when it has done with it: the side it came from, and the channel it is to leave by, 0 for none.
func (m *member) way(from intercept.Side, p packet, d intercept.Decision) []byte {
	id := path.ChannelID(0)
	if from == intercept.LAN {
		w := m.path.Decide(&path.Packet{Src: p.src, Dst: p.dst, Protocol: p.protocol(), Optimized: d.Optimized, HeaderOnly: d.HeaderOnly, Via: path.Via{Balancer: balancerName(m.number), Interface: "inpath"}})
		if w.Outcome == path.Sent {
			id = w.Channel.ID
		}
	}
	return append([]byte{byte(from), byte(m.number)}, byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// leave lets a packet go on where it was going.
func (m *member) leave(from intercept.Side, b []byte) {
	to := hostWAN
	if from == intercept.WAN {
		to = hostLAN
	}
	m.out.send(m.site.hosts[to].Addr, portEnd, b)
}

// back takes a packet from a node for which there is no channel.
func (m *member) back(b []byte) {
	if len(b) < 1 {
		return
	}
	if from := intercept.Side(b[0]); from == intercept.LAN {
		m.relayed.Add(1)
	}
	m.leave(intercept.Side(b[0]), b[1:])
}

// channel takes a packet from a node for a channel of this balancer.
func (m *member) channel(b []byte) {
	id, _, inner, err := path.ParseHeader(b)
	if err != nil {
		return
	}
	for _, c := range m.path.Channels() {
		if c.ID == id && c.Balancer == balancerName(m.number) {
			m.out.send(c.Gateway, portGate, inner)
		}
	}
}

// probe asks the gateway of a channel through the channel: by way of the balancer whose it is.
func (m *member) probe(ctx context.Context, c path.Channel) error {
	socket, err := m.host.ListenPacket(ctx, "udp", netip.AddrPortFrom(m.host.Addr, 0).String())
	if err != nil {
		return err
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	me, err := netip.ParseAddrPort(socket.LocalAddr().String())
	if err != nil {
		return err
	}
	question := packet{src: me, dst: netip.AddrPortFrom(c.Gateway, 7), seq: 1}
	b, err := question.bytes()
	if err != nil {
		return err
	}
	outlet{socket}.send(c.Addr, portChannel, append(path.AppendHeader(nil, c.ID, 0x0800), b...))
	_, _, err = socket.ReadFrom(make([]byte, 2048))
	if ctx.Err() != nil {
		return fmt.Errorf("gateway %v over %s: %w", c.Gateway, c.Balancer, ctx.Err())
	}
	return err
}
