package dataplane_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/rtnl"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/steering"
)

// world is a client host, a balancer host and two server hosts, joined by veth: the kernel's own
// stack at every end, a Plane on a TUN device between them.
//
//	client 10.70.0.2 ── 10.70.0.1 balancer 10.70.i.1 ── 10.70.i.2 server i
//
// or, with routers, its name at every end of a cable:
//
//	client ── c0 near b0 ── n0 balancer f0 ── b0 far si ── server i
//	       0            10           20            i
type world struct {
	how              how
	client, balancer *netns.Namespace
	near, far        *netns.Namespace // routers, if there are any
	servers          [2]*netns.Namespace
	devices          []*tun.Device
	plane            *dataplane.Plane
	nodes            map[bool][]steering.Node
	pools            map[bool]*steering.Pool
	ids              *steering.IDs
}

func wvip(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8::70")
	}
	return netip.MustParseAddr("192.0.2.70")
}

// wvip3 has a policy for TCP only.
func wvip3(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8::72")
	}
	return netip.MustParseAddr("192.0.2.72")
}

// wlocal is the balancer's own address for full NAT.
func wlocal(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8:70::1")
	}
	return netip.MustParseAddr("198.18.70.1")
}

func waddr(v6 bool, cable, host byte) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x70, 7: cable, 15: host})
	}
	return netip.AddrFrom4([4]byte{10, 70, cable, host})
}

func onLink(cable, host byte) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(waddr(false, cable, host), 24), netip.PrefixFrom(waddr(true, cable, host), 64)}
}

// how a world is made.
type how struct {
	noOffload bool // cables carry only whole packets with checksums, which receivers verify
	queues    int  // of the device, 0: one
	wrap      func(dataplane.Device) dataplane.Device
	limits    splice.Limits // of delayed binding

	routers bool                                // between the client and the balancer, and between it and the servers
	own     []netip.Addr                        // Config.Addrs
	outer6  func(v6 bool) bool                  // the family of the nodes of a service; nil: its own
	routes  []netip.Prefix                      // more that the device gets
	past    bool                                // servers answer past the device
	service func(s *dataplane.Service, v6 bool) // changes the services
	third   func(s *dataplane.Service, v6 bool) // and those of wvip3, which otherwise are the same
	mtu     func(cable string) int              // of cables, 0: 1500
}

func newWorld(t *testing.T, h how) *world {
	t.Helper()
	testenv.NeedNetns(t)
	w := &world{how: h, nodes: map[bool][]steering.Node{}, pools: map[bool]*steering.Pool{}}
	for _, n := range []**netns.Namespace{&w.client, &w.balancer, &w.servers[0], &w.servers[1]} {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		*n = ns
	}
	towards := w.cables(t)
	if h.past {
		towards = nil
	}
	require.NoError(t, w.balancer.Do(func() (err error) {
		w.devices, err = tun.OpenQueues(&tun.Config{
			Routes: append([]netip.Prefix{netip.PrefixFrom(wvip(false), 31), netip.PrefixFrom(wvip(true), 127), netip.PrefixFrom(wvip3(false), 32), netip.PrefixFrom(wvip3(true), 128)}, h.routes...),
			Divert: towards,
		}, max(1, h.queues))
		return err
	}))
	var devices []dataplane.Device
	for _, d := range w.devices {
		t.Cleanup(func() { d.Close() })
		if h.wrap != nil {
			devices = append(devices, h.wrap(d))
		} else {
			devices = append(devices, d)
		}
	}

	ids := &steering.IDs{}
	w.ids = ids
	var rules []policy.Rule[*dataplane.Service]
	for _, v6 := range []bool{false, true} {
		outer6 := v6
		if h.outer6 != nil {
			outer6 = h.outer6(v6)
		}
		for i := range w.servers {
			w.nodes[v6] = append(w.nodes[v6], steering.Node{Name: fmt.Sprintf("server%d-%v", i, v6), Addr: netip.AddrPortFrom(waddr(outer6, byte(1+i), 2), 0)})
		}
		pool, err := steering.NewPool(&steering.Config{Metric: steering.RoundRobin, IDs: ids}, w.nodes[v6]...)
		require.NoError(t, err)
		w.pools[v6] = pool
		name := fmt.Sprintf("all-%v", v6)
		svc := &dataplane.Service{Name: name, Pool: pool, Mode: clienttable.ServerPerSession}
		if h.service != nil {
			h.service(svc, v6)
		}
		third := svc
		if h.third != nil {
			third = &dataplane.Service{Name: "third-" + name, Pool: pool, Mode: clienttable.ServerPerSession}
			h.third(third, v6)
		}
		rules = append(rules, policy.Rule[*dataplane.Service]{
			Name: name, Match: policy.Match{Dst: netip.PrefixFrom(wvip(v6), wvip(v6).BitLen())}, Value: svc,
		}, policy.Rule[*dataplane.Service]{ // for pings that no policy matches
			Name: "third-" + name, Match: policy.Match{Dst: netip.PrefixFrom(wvip3(v6), wvip3(v6).BitLen()), Protocol: policy.TCP}, Value: third,
		})
	}
	table, err := policy.Compile(nil, rules...)
	require.NoError(t, err)
	w.plane, err = dataplane.New(&dataplane.Config{Policies: table, Devices: devices, MaxSessions: 1 << 14, Addrs: h.own})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.plane.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
		require.NoError(t, w.plane.Close())
		if t.Failed() {
			for reason, n := range w.plane.Drops() {
				t.Logf("dropped: %s %d", reason, n)
			}
			for _, d := range w.devices {
				t.Logf("device: %+v", d.Stats())
			}
		}
	})
	return w
}

// cables joins the hosts, and returns the balancer's interfaces towards the servers.
func (w *world) cables(t *testing.T) (towards []string) {
	t.Helper()
	join := func(a *netns.Namespace, name string, b *netns.Namespace, there string, cable byte) {
		mtu := 0
		if w.how.mtu != nil {
			mtu = w.how.mtu(name)
		}
		require.NoError(t, netns.Join(
			netns.End{NS: a, Name: name, Addrs: onLink(cable, 1), NoOffload: w.how.noOffload, MTU: mtu},
			netns.End{NS: b, Name: there, Addrs: onLink(cable, 2), NoOffload: w.how.noOffload, MTU: mtu}))
		require.NoError(t, b.DefaultVia(waddr(false, cable, 1), waddr(true, cable, 1)))
	}
	near, far := w.balancer, w.balancer
	towards = []string{"s1", "s2"}
	if w.how.routers {
		for _, n := range []**netns.Namespace{&near, &far} {
			ns, err := netns.New()
			require.NoError(t, err)
			t.Cleanup(func() { ns.Close() })
			require.NoError(t, ns.Router())
			*n = ns
		}
		w.near, w.far = near, far
		join(w.balancer, "n0", near, "b0", 10)
		join(w.balancer, "f0", far, "b0", 20)
		towards = []string{"f0"}
		require.NoError(t, w.balancer.DefaultVia(waddr(false, 10, 2), waddr(true, 10, 2)))
		require.NoError(t, w.balancer.Do(func() error {
			for i := range byte(2) {
				for _, v6 := range []bool{false, true} {
					to := netip.PrefixFrom(waddr(v6, 1+i, 0), map[bool]int{false: 24, true: 64}[v6])
					if err := rtnl.ReplaceRoute(rtnl.Route{Dst: to, Gateway: waddr(v6, 20, 2)}); err != nil {
						return err
					}
				}
			}
			return nil
		}))
	}
	join(near, "c0", w.client, "eth0", 0)
	for i, ns := range w.servers {
		join(far, fmt.Sprint("s", 1+i), ns, "eth0", byte(1+i))
	}
	require.NoError(t, w.balancer.Router())
	return towards
}

// families runs a test over both, over cables with and without offloads, and with more
// than one worker.
func families(t *testing.T, f func(t *testing.T, w *world, v6 bool)) {
	for name, h := range map[string]how{
		"super-packets":      {},
		"verified checksums": {noOffload: true},
		"two queues":         {queues: 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h)
			for _, v6 := range []bool{false, true} {
				t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) { f(t, w, v6) })
			}
		})
	}
}

// listener is a TCP server on one of the hosts that can be killed.
type listener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

// serve starts a server on host i that sends back what it gets, after its own number.
func (w *world) serve(t *testing.T, i int, v6 bool, port uint16) *listener {
	t.Helper()
	return w.serveAt(t, i, waddr(v6, byte(1+i), 2), port)
}

func (w *world) serveAt(t *testing.T, i int, a netip.Addr, port uint16) *listener {
	t.Helper()
	ln, err := w.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(a, port).String())
	require.NoError(t, err)
	l := &listener{Listener: ln}
	t.Cleanup(l.kill)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.conns = append(l.conns, c)
			l.mu.Unlock()
			go func() {
				defer c.Close()
				if _, err := c.Write([]byte{byte(i)}); err == nil {
					io.Copy(c, c)
				}
			}()
		}
	}()
	return l
}

// kill resets all connections and listens no more, as the kernel does for a process that dies.
func (l *listener) kill() {
	l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	l.conns = nil
}

// dial connects to the VIP and returns the number of the server that answers.
func (w *world) dial(v6 bool, port uint16) (c net.Conn, server int, err error) {
	return w.dialTo(netip.AddrPortFrom(wvip(v6), port))
}

func (w *world) dialTo(to netip.AddrPort) (c net.Conn, server int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Who waits for an answer of a dead server says something now and then, or would never learn of it.
	d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 30}}
	c, err = w.client.DialWith(ctx, d, "tcp", to.String())
	if err != nil {
		return nil, 0, err
	}
	c.SetDeadline(time.Now().Add(patience))
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		c.Close()
		return nil, 0, err
	}
	return c, int(b[0]), nil
}
