package dataplane

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// dialler begins connections, and has one of the nodes answer.
type dialler struct {
	*rostered
	port uint16
}

func newDialler(t *testing.T, fam family, change func(*Service), edit ...func(*healthcheck.Setup)) *dialler {
	r := newRostered(t, fam, healthcheck.SlowStart{}, change, edit...)
	r.FeedRoster(r.roster)
	return &dialler{rostered: r, port: 10000}
}

// dial begins a connection, and returns its ends.
func (d *dialler) dial() (client, node netip.AddrPort) {
	d.t.Helper()
	d.port++
	client = ap(d.fam.client, d.port)
	_, out := d.send(tcp(client, ap(d.fam.vip, 80), "S", 1, 0, ""))
	require.NotNil(d.t, out)
	f, _ := parseFlow(out)
	return client, f.Dst
}

// unanswered begins connections until n of them have come to s1, which is silent. s2 answers.
func (d *dialler) unanswered(n int) {
	d.t.Helper()
	for n > 0 {
		client, node := d.dial()
		if node.Addr() == d.fam.n1 {
			n--
		} else {
			d.send(tcp(node, client, "SA", 7, 2, ""))
		}
	}
}

// answered has s1 answer one of the connections.
func (d *dialler) answered() {
	d.t.Helper()
	for s := range d.Sessions() {
		if s.Node.Addr() == d.fam.n1 && s.Phase == clienttable.TCPSynSent {
			d.send(tcp(s.Node, s.Client, "SA", 7, 2, ""))
			return
		}
	}
	d.t.Fatal("no connection to answer")
}

// pass lets the Plane look twice, a second apart. No time passes for the checks.
func (d *dialler) pass() {
	d.Step(d.now)
	d.Step(d.now.Add(time.Second))
}

func (d *dialler) want(state healthcheck.State, unanswered int) healthcheck.PortStatus {
	d.t.Helper()
	d.pass()
	st, ok := d.roster.Port("s1", "web")
	require.True(d.t, ok)
	require.Equal(d.t, state, st.State)
	require.Equal(d.t, unanswered, st.Unanswered)
	return st
}

// TestUnansweredSYNs has the Plane fail a port whose node does not answer.
func TestUnansweredSYNs(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			d := newDialler(t, fam, nil)
			d.unanswered(20)
			d.want(healthcheck.Active, 20)
			d.answered()
			d.want(healthcheck.Active, 0)
			d.unanswered(20)
			d.want(healthcheck.Active, 20)
			d.lights[0].off.Store(true)
			d.unanswered(1) // 21 in a row
			st := d.want(healthcheck.Failed, 21)
			require.ErrorIs(t, st.Err, healthcheck.ErrUnanswered)
			d.wait(0)
			other, ok := d.roster.Port("s2", "8080")
			require.True(t, ok)
			require.Equal(t, healthcheck.Active, other.State)
			require.Zero(t, other.Unanswered)
			a, b := d.shares(30000, 6)
			require.Equal(t, [2]int{0, 6}, [2]int{a, b})

			// The check brings it back, and the count begins anew.
			d.lights[0].off.Store(false)
			d.wait(5 * time.Second)
			d.want(healthcheck.Active, 0)
			d.unanswered(20)
			d.want(healthcheck.Active, 20)
			d.unanswered(1)
			d.want(healthcheck.Failed, 21)
		})
	})
}

// TestBurstOfSYNs has more connections begin at once than the threshold says: the node cannot have answered yet.
func TestBurstOfSYNs(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			d := newDialler(t, fam, nil)
			for range 3 {
				d.unanswered(25)
				d.Step(d.now)
				d.answered()
				d.unanswered(20)
				d.now = d.now.Add(time.Second)
				d.Step(d.now)
				d.answered()
				d.want(healthcheck.Active, 0)
			}
			// Bursts without end: each time it is looked, some are not answered yet.
			for range 6 {
				d.unanswered(25)
				d.now = d.now.Add(time.Second)
				d.Step(d.now)
				d.answered()
			}
			d.want(healthcheck.Active, 0)
			d.unanswered(25)
			d.want(healthcheck.Failed, 25)
		})
	})
}

// TestWhichSYNsCount shows what is no unanswered connection.
func TestWhichSYNsCount(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			d := newDialler(t, fam, nil)
			vip := ap(fam.vip, 80)
			client, node := d.dial()
			for node.Addr() != fam.n1 {
				client, node = d.dial()
			}
			d.want(healthcheck.Active, 1)
			d.send(tcp(client, vip, "S", 1, 0, "")) // again
			d.want(healthcheck.Active, 2)
			d.send(tcp(node, client, "RA", 0, 2, "")) // a refusal
			d.want(healthcheck.Active, 2)
			d.unanswered(1)
			d.answered()
			d.want(healthcheck.Active, 0)

			client, node = d.dial()
			for node.Addr() != fam.n1 {
				client, node = d.dial()
			}
			d.forwarded(tcp(node, client, "SA", 7, 2, ""), vip, client)
			d.forwarded(tcp(client, vip, "A", 2, 8, ""), client, node)
			for range 30 { // within a connection
				d.send(tcp(client, vip, "S", 90000, 0, ""))
			}
			d.want(healthcheck.Active, 0)

			bad := tcp(ap(fam.client2, 5), vip, "S", 1, 0, "")
			bad[len(bad)-1] ^= 1 // the maximum segment size
			dies := tcp(ap(fam.client2, 6), vip, "S", 1, 0, "")
			if fam.vip.Is4() {
				dies[8] = 1
				dies[10], dies[11] = 0, 0
				fixHeader(dies)
			} else {
				dies[7] = 1
			}
			for range 30 { // alternate between the nodes
				d.send(bad)
				d.send(dies)
			}
			d.want(healthcheck.Active, 0)
		})
	})
}

// fixHeader computes the checksum of an IPv4 header.
func fixHeader(b []byte) {
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	b[10], b[11] = byte(^sum>>8), byte(^sum)
}

// TestUnansweredSYNsOfDelayedBinding counts those that the Plane sends itself.
func TestUnansweredSYNsOfDelayedBinding(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			d := newDialler(t, fam, func(s *Service) { s.Delay = &Delay{} })
			vip := ap(fam.vip, 80)
			dial := func() (client, node netip.AddrPort) {
				d.port++
				client = ap(fam.client, d.port)
				ours := d.hello(client, 1000)
				_, out := d.sendAll(tcp(client, vip, "A", 1001, ours+1, ""))
				require.Len(t, out, 1)
				f, _ := parseFlow(out[0])
				return client, f.Dst
			}
			to1 := 0
			for to1 < 20 {
				client, node := dial()
				if node.Addr() == fam.n1 {
					to1++
				} else {
					d.send(tcp(node, client, "SA", 7, 1001, ""))
				}
			}
			d.want(healthcheck.Active, 20)
			client, node := dial()
			for node.Addr() != fam.n1 {
				client, node = dial()
			}
			d.want(healthcheck.Failed, 21)
			_ = client
		})
	})
}

// TestSYNsAnsweredElsewhere has the answers of nodes come by way of another balancer: clients that go on have been answered.
func TestSYNsAnsweredElsewhere(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			d := newDialler(t, fam, nil)
			d.cfg.Peers = new(directory)
			for range 100 {
				client, node := d.dial()
				d.forwarded(tcp(client, ap(fam.vip, 80), "A", 2, 8, ""), client, node)
			}
			d.want(healthcheck.Active, 0)
			d.unanswered(21)
			d.want(healthcheck.Failed, 21)
		})
	})
}

// TestNoSYNIsCounted where nodes answer past the Plane, where a port has no threshold, and where nobody is told.
func TestNoSYNIsCounted(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for name, row := range map[string]struct {
			service func(*Service)
			setup   func(*healthcheck.Setup)
			feed    bool
		}{
			"tunnel":       {func(s *Service) { s.Forward = Tunnelled }, func(*healthcheck.Setup) {}, true},
			"DSR":          {nil, func(s *healthcheck.Setup) { s.Servers[0].Ports[0].DSR = true }, true},
			"no threshold": {nil, func(s *healthcheck.Setup) { s.Servers[0].Ports[0].Reassign = -1 }, true},
			"nobody":       {nil, func(*healthcheck.Setup) {}, false},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newDialler(t, fam, row.service, row.setup)
					if !row.feed {
						d.FeedRoster(nil)
					}
					for range 200 {
						d.port++
						d.send(tcp(ap(fam.client, d.port), ap(fam.vip, 80), "S", 1, 0, ""))
					}
					d.want(healthcheck.Active, 0)
				})
			})
		}
	})
}

// TestNodesOfLaterAreWitnessed has a port and its node come when the Roster is fed already.
func TestNodesOfLaterAreWitnessed(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			var setup healthcheck.Setup
			d := newDialler(t, fam, nil, func(s *healthcheck.Setup) { setup = *s })
			light := &light{}
			setup.Servers = append(setup.Servers, healthcheck.Server{Name: "s3", Addr: fam.n3, Ports: []healthcheck.Port{
				{Port: 8080, L4: light, Check: healthcheck.Check{Interval: time.Second, Fall: 1}, Reassign: 1}}})
			require.NoError(t, d.roster.Set(setup))
			d.wait(2 * time.Second) // there is no such node
			nodes := []steering.Node{{Name: "s1/web", Addr: ap(fam.n1, 8080)}, {Name: "s2", Addr: ap(fam.n2, 8080)}, {Name: "s3", Addr: ap(fam.n3, 8080)}}
			require.NoError(t, d.SetNodes(d.svc.Pool, nodes...))
			d.wait(0) // its port is up, as it has been for seconds
			for n := 0; n < 2; {
				client, node := d.dial()
				if node.Addr() == fam.n3 {
					n++
				} else {
					d.send(tcp(node, client, "SA", 7, 2, ""))
				}
			}
			d.pass()
			st, ok := d.roster.Port("s3", "8080")
			require.True(t, ok)
			require.Equal(t, healthcheck.Failed, st.State)

			// Neither a node nor a port that is gone does any harm.
			d.unanswered(20)
			require.NoError(t, d.roster.Set(healthcheck.Setup{Servers: setup.Servers[1:]}))
			d.unanswered(1)
			d.pass()
			require.NoError(t, d.SetNodes(d.svc.Pool, nodes[1:]...))
			d.wait(2 * time.Second)
			d.FeedRoster(nil)
			d.Step(d.now)
		})
	})
}

// TestSilentServer has a server fall silent under traffic: it is suspected, pinged, and fails, unless it answers.
func TestSilentServer(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			ping := &light{}
			d := newDialler(t, fam, nil, func(s *healthcheck.Setup) {
				s.Servers[0].Echo = ping
				// The first of them comes within a second, and no other for an hour unless something is suspected.
				s.Servers[0].EchoCheck = healthcheck.Check{Interval: time.Hour, FastInterval: 100 * time.Millisecond, Fall: 3, Timeout: time.Second}
			})
			require.NoError(t, d.roster.Monitor().Trigger("echo:s1"))
			d.wait(0)
			state := func() healthcheck.State {
				st, ok := d.roster.Server("s1")
				require.True(t, ok)
				return st.State
			}
			require.Equal(t, healthcheck.Active, state())
			client, node := d.dial()
			for node.Addr() != fam.n1 {
				client, node = d.dial()
			}
			d.forwarded(tcp(node, client, "SA", 7, 2, ""), ap(fam.vip, 80), client)
			talk := func(seconds int, answers bool) (suspected int) {
				for range seconds {
					d.send(tcp(client, ap(fam.vip, 80), "A", 2, 8, "x"))
					if answers {
						d.send(tcp(node, client, "A", 8, 3, "y"))
					}
					time.Sleep(time.Second)
					synctest.Wait()
					d.now = time.Now()
					d.Step(d.now)
					if state() == healthcheck.Suspect {
						suspected++
					}
				}
				return suspected
			}
			talk(10, true)
			require.Equal(t, healthcheck.Active, state())
			last := d.roster.Monitor().History("echo:s1")
			require.Len(t, last, 1, "nobody asked")
			// Nothing comes back: it is pinged, and answers that.
			talk(10, false)
			require.Equal(t, healthcheck.Active, state())
			require.Greater(t, len(d.roster.Monitor().History("echo:s1")), 1)
			talk(2, true)
			// Nothing comes back, not even to pings.
			ping.off.Store(true)
			talk(3, false)
			require.NotEqual(t, healthcheck.Failed, state(), "3 to 4 seconds")
			talk(3, false)
			require.Equal(t, healthcheck.Failed, state())
			st, _ := d.roster.Port("s1", "web")
			require.False(t, st.Usable)
		})
	})
}

// TestHandshakesAllocateNothing counts SYNs and answers in the packets' path.
func TestHandshakesAllocateNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialler(t, families2()[0], nil, func(s *healthcheck.Setup) { s.Servers[0].Ports[0].Reassign = 1 << 20 })
		client, node := d.dial()
		for node.Addr() != d.fam.n1 {
			client, node = d.dial()
		}
		batch := func(b []byte) ([][]byte, []int) {
			return [][]byte{append(make([]byte, ReadOffset), b...)}, []int{len(b)}
		}
		syn := tcp(client, ap(d.fam.vip, 80), "S", 1, 0, "")
		bufs, sizes := batch(syn)
		before := d.want(healthcheck.Active, 1).Unanswered
		require.Zero(t, testing.AllocsPerRun(100, func() {
			copy(bufs[0][ReadOffset:], syn)
			d.w.Process(d.now, bufs, sizes, ReadOffset, nil)
		}))
		d.want(healthcheck.Active, before+101)
		ack := tcp(node, client, "SA", 7, 2, "")
		bufs, sizes = batch(ack)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			copy(bufs[0][ReadOffset:], ack)
			d.w.Process(d.now, bufs, sizes, ReadOffset, nil)
		}))
		d.want(healthcheck.Active, 0)
	})
}
