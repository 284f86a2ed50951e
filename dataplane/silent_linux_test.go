package dataplane_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// from has a prober probe from a host.
func from(ns *netns.Namespace, p healthcheck.Prober) healthcheck.Prober {
	return healthcheck.ProberFunc(func(ctx context.Context, target netip.AddrPort) (r healthcheck.Result) {
		if err := ns.Do(func() error { r = p.Probe(ctx, target); return nil }); err != nil {
			return healthcheck.Undecided("netns", target, err)
		}
		return r
	})
}

// silence has a host drop all that comes, until it is called again.
func silence(t *testing.T, ns *netns.Namespace) (undo func()) {
	t.Helper()
	nft := testenv.NeedServers(t, "nft")[0]
	run := func(args ...string) {
		require.NoError(t, ns.Do(func() error {
			if out, err := exec.Command(nft, args...).CombinedOutput(); err != nil {
				return fmt.Errorf("nft %v: %w: %s", args, err, out)
			}
			return nil
		}))
	}
	run("add", "table", "inet", "silent")
	run("add", "chain", "inet", "silent", "in", "{ type filter hook input priority 0 ; policy drop ; }")
	return sync.OnceFunc(func() { run("delete", "table", "inet", "silent") })
}

// watched has a Roster follow the servers of a world of one family. Its checks are made when they are asked for, and otherwise once an hour:
// only the Plane can notice that a server is silent.
func (w *world) watched(t *testing.T, v6 bool, port uint16, silence time.Duration) *healthcheck.Roster {
	t.Helper()
	onPort, onAgent, err := w.plane.ApplyRoster(healthcheck.SlowStart{})
	require.NoError(t, err)
	r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{OnPort: onPort, OnAgent: onAgent})
	require.NoError(t, err)
	var setup healthcheck.Setup
	seldom := healthcheck.Check{Interval: time.Hour, FastInterval: 300 * time.Millisecond, Timeout: time.Second, Fall: 2}
	for i := range w.servers {
		setup.Servers = append(setup.Servers, healthcheck.Server{
			Name: w.nodes[v6][i].Name, Addr: waddr(v6, byte(1+i), 2), Echo: from(w.balancer, probe.ICMP{Attempts: 1}), EchoCheck: seldom, Silence: silence,
			Ports: []healthcheck.Port{{Port: port, L4: from(w.balancer, probe.TCP{}), Check: seldom}},
		})
	}
	require.NoError(t, r.Set(setup))
	w.plane.FeedRoster(r)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; w.plane.FeedRoster(nil) })
	for i := range w.servers {
		name := w.nodes[v6][i].Name
		usable(t, r, name, port)
	}
	return r
}

// usable has a port of a server be checked until it is usable: on a busy machine, or when the server's neighbours look for it again, the first
// check may come to nothing.
func usable(t *testing.T, r *healthcheck.Roster, name string, port uint16) {
	t.Helper()
	var checked time.Time
	until(t, func() bool {
		if time.Since(checked) > 2*time.Second {
			checked = time.Now()
			require.NoError(t, r.Monitor().Trigger("echo:"+name))
			require.NoError(t, r.Monitor().Trigger(fmt.Sprintf("port:%s/%d", name, port)))
		}
		st, _ := r.Port(name, fmt.Sprint(port))
		return st.Usable
	})
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "it does not come to be")
	}
}

// TestNetnsSilentPort has a real server fall silent, and clients come. The Plane sees that none is answered, and has the server's port fail long
// before its check would be made; the check brings it back.
func TestNetnsSilentPort(t *testing.T) {
	w := newWorld(t, how{})
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			const port = 7100
			w.serve(t, 0, v6, port)
			w.serve(t, 1, v6, port)
			r := w.watched(t, v6, port, -1)
			name := w.nodes[v6][0].Name
			state := func() healthcheck.PortStatus { st, _ := r.Port(name, fmt.Sprint(port)); return st }
			for range 60 {
				c, _, err := w.dial(v6, port)
				require.NoError(t, err)
				c.Close()
			}
			require.Equal(t, healthcheck.Active, state().State)

			speak := silence(t, w.servers[0])
			t.Cleanup(speak)
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(context.Background())
			for range 60 { // half of them come to the silent one
				wg.Go(func() {
					if c, err := w.client.DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), port).String()); err == nil {
						c.Close()
					}
				})
			}
			until(t, func() bool { return state().State == healthcheck.Failed })
			cancel()
			wg.Wait()
			for range 20 {
				c, server, err := w.dial(v6, port)
				require.NoError(t, err)
				require.Equal(t, 1, server)
				c.Close()
			}
			other, _ := r.Port(w.nodes[v6][1].Name, fmt.Sprint(port))
			require.Equal(t, healthcheck.Active, other.State)

			speak()
			usable(t, r, name, port)
			met := [2]int{}
			for range 20 {
				c, server, err := w.dial(v6, port)
				require.NoError(t, err)
				met[server]++
				c.Close()
			}
			require.NotZero(t, met[0])
		})
	}
}

// TestNetnsSilentServer has a real server fall silent under datagrams that it used to answer: it is suspected, pinged, and fails; and one that
// answers pings does not.
func TestNetnsSilentServer(t *testing.T) {
	w := newWorld(t, how{})
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			const port = 7101
			for i := range w.servers {
				w.serve(t, i, v6, port)
				pc, err := w.servers[i].ListenPacket(t.Context(), "udp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
				require.NoError(t, err)
				t.Cleanup(func() { pc.Close() })
				go func() {
					b := make([]byte, 100)
					for {
						_, a, err := pc.ReadFrom(b)
						if err != nil {
							return
						}
						pc.WriteTo([]byte{byte(i)}, a)
					}
				}()
			}
			r := w.watched(t, v6, port, 0)
			// A client of server 0.
			var c net.Conn
			until(t, func() bool {
				var err error
				c, err = w.client.DialContext(t.Context(), "udp", netip.AddrPortFrom(wvip(v6), port).String())
				require.NoError(t, err)
				b := []byte{9}
				c.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err = c.Write(b); err == nil {
					_, err = c.Read(b)
				}
				if err == nil && b[0] == 0 {
					return true
				}
				c.Close()
				return false
			})
			defer c.Close()
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
						c.Write([]byte{1})
					}
				}
			})
			defer wg.Wait()
			defer close(stop)
			name := w.nodes[v6][0].Name
			state := func() healthcheck.State { st, _ := r.Server(name); return st.State }
			pings := func() int { return len(r.Monitor().History("echo:" + name)) }
			before := pings()
			speak := silence(t, w.servers[0])
			t.Cleanup(speak)
			until(t, func() bool { return state() == healthcheck.Failed })
			require.Greater(t, pings(), before)
			st, _ := r.Port(name, fmt.Sprint(port))
			require.False(t, st.Usable)
			other, _ := r.Server(w.nodes[v6][1].Name)
			require.Equal(t, healthcheck.Active, other.State)
			speak()
			usable(t, r, name, port)
		})
	}
}
