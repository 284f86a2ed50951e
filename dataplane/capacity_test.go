package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/devtest"
)

// carried has all entries carried over.
func (p *testPlane) carried() {
	p.t.Helper()
	for range 10000 {
		if p.Step(p.now); !p.growing() {
			return
		}
	}
	p.t.Fatal("it never comes to an end")
}

// TestMoreSessions: a full Plane refuses, is given more, and takes what it refused, while those it has stay where they are.
func TestMoreSessions(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		const few = 60
		p := newPlane(t, fam, func(c *Config, _ *Service) { c.MaxSessions = few })
		vip := ap(fam.vip, 80)
		node := map[netip.AddrPort]netip.AddrPort{}
		for i := range uint16(few) {
			client := ap(fam.client, 1000+i)
			node[client] = p.open(client)
		}
		refused := func() {
			t.Helper()
			v, _ := p.send(tcp(ap(fam.client2, 1), vip, "S", 1, 0, ""))
			require.Equal(t, Dropped, v)
		}
		there := func() {
			t.Helper()
			for client, n := range node {
				p.forwarded(tcp(client, vip, "AP", 101, 501, "x"), client, n)
				p.forwarded(tcp(n, client, "A", 501, 102, ""), vip, client)
			}
		}
		refused()
		require.EqualValues(t, 1, p.drops()[TableFull])
		require.Equal(t, few, p.MaxSessions())
		require.NoError(t, p.SetMaxSessions(2*few))
		require.Equal(t, 2*few, p.MaxSessions())
		require.Equal(t, 2*few, p.Stats().MaxSessions)
		require.True(t, p.growing())
		for i := range uint16(few) {
			client := ap(fam.client2, 1+i)
			node[client] = p.open(client)
			if i%7 == 0 {
				p.Step(p.now)
			}
			if i%20 == 0 {
				there()
			}
		}
		v, _ := p.send(tcp(ap(fam.client2, 5000), vip, "S", 1, 0, ""))
		require.Equal(t, Dropped, v)
		p.carried()
		there()
		require.Equal(t, 2*few, p.Stats().Sessions)
		require.Len(t, p.drops(), 1)
		require.EqualValues(t, 2, p.drops()[TableFull])

		if len(p.slab.recs) >= records(DefaultMaxSessions) {
			require.NoError(t, p.SetMaxSessions(0))
			require.Equal(t, DefaultMaxSessions, p.MaxSessions())
		}
	})
}

// TestFewerSessions: nobody ends for it; new ones find room once there is some, and then the memory is given back.
func TestFewerSessions(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, f := range []Forward{NAT, Tunnelled} {
			t.Run(f.String(), func(t *testing.T) {
				p := newPlane(t, fam, func(c *Config, s *Service) {
					c.Addrs = []netip.Addr{fam.elsewhere}
					s.Forward = f
				})
				vip := ap(fam.vip, 80)
				begin := func(i uint16) Verdict {
					v, _ := p.send(udp(ap(fam.client, i), vip, "x"))
					return v
				}
				for i := range uint16(900) {
					require.Equal(t, Forwarded, begin(i+1))
				}
				fresh := p.slab.fresh
				require.EqualValues(t, 900, fresh)
				require.NoError(t, p.SetMaxSessions(100))
				p.now = p.now.Add(40 * time.Second)
				for i := range uint16(900) {
					if i%20 == 0 || i > 880 {
						require.Equal(t, Forwarded, begin(i+1), "%d has a session", i)
					}
				}
				require.Equal(t, Dropped, begin(5000))
				require.Equal(t, 900, p.Stats().Sessions)
				require.Equal(t, 100, p.Stats().MaxSessions)
				p.now = p.now.Add(40 * time.Second) // the others age
				for range 3 {
					p.Step(p.now)
				}
				require.Equal(t, 64, p.Stats().Sessions)
				begun := uint16(0)
				for begin(6000+begun) == Forwarded {
					begun++
				}
				if f == NAT {
					require.EqualValues(t, 36, begun)
				} else {
					require.Greater(t, begun, uint16(36)) // of those with one entry the records are what is bounded
				}
				p.now = p.now.Add(2 * time.Minute)
				was := p.sessions().Stats().Bytes
				for range 3 {
					p.Step(p.now)
					require.NoError(t, p.reclaim(p.now))
				}
				p.carried()
				require.Zero(t, p.Stats().Sessions)
				require.EqualValues(t, records(100), p.slab.fresh)
				require.Less(t, p.sessions().Stats().Bytes, was/2)
				for i := range uint16(100) {
					require.Equal(t, Forwarded, begin(7000+i))
				}
				if f == NAT {
					require.Equal(t, Dropped, begin(8000))
				}
				require.NoError(t, p.SetMaxSessions(1000))
				for i := range uint16(900) {
					require.Equal(t, Forwarded, begin(9000+i))
				}
				p.carried()
				require.Equal(t, 1000, p.Stats().Sessions)
			})
		}
	})
}

// TestFewerSessionsHalfOpen: among more sessions than there may be, half-open ones make room as in any full table.
func TestFewerSessionsHalfOpen(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) { s.Ageing.SYN = time.Minute })
		vip := ap(fam.vip, 80)
		client := ap(fam.client2, 1)
		node := p.open(client)
		for i := range uint16(999) {
			v, _ := p.send(tcp(ap(fam.client, i+1), vip, "S", 1, 0, ""))
			require.Equal(t, Forwarded, v)
		}
		require.NoError(t, p.SetMaxSessions(10))
		for i := range uint16(100) {
			p.open(ap(fam.client2, 100+i))
			p.slab.recycle(p.quiesce)
		}
		require.LessOrEqual(t, p.Stats().Sessions, 1000)
		p.forwarded(tcp(client, vip, "AP", 101, 501, "x"), client, node)
	})
}

// TestCapacityRefused: what is not valid changes nothing, and says so.
func TestCapacityRefused(t *testing.T) {
	p := newPlane(t, families2()[0])
	for field, f := range map[string]struct {
		set func(int) error
		is  func() int
	}{"MaxSessions": {p.SetMaxSessions, p.MaxSessions}, "MaxAssociations": {p.SetMaxAssociations, p.MaxAssociations}} {
		for _, n := range []int{-1, mostEntries + 1} {
			err := f.set(n)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, fmt.Sprintf("%s = %d: want 1 to %d, or 0 for 262144", field, n, mostEntries))
			require.Equal(t, 1000, f.is())
		}
	}
	// What no address space was set aside for.
	p.slab.recs = p.slab.recs[:records(2000)]
	err := p.SetMaxSessions(3000)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "MaxSessions = 3000: want at most 2000, ")
	require.Equal(t, 1000, p.MaxSessions())
	require.Equal(t, 2000, p.sessions().MaxEntries())
	require.NoError(t, p.SetMaxSessions(2000))

	require.NoError(t, p.Close())
	require.ErrorIs(t, p.SetMaxSessions(10), clienttable.ErrClosed)
	require.ErrorIs(t, p.SetMaxAssociations(10), clienttable.ErrClosed)
	require.NoError(t, p.reclaim(p.now))
}

// TestCapacityTwin: a Plane whose capacity is changed all the time, and never below what it needs, does to every packet what one does that had
// the largest one from the start.
func TestCapacityTwin(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for seed := range uint64(2) {
			set := func(c *Config, s *Service) {
				c.Seed, c.Addrs = 7, []netip.Addr{fam.elsewhere}
				c.MaxSessions, c.MaxAssociations = 4000, 4000
				s.Mode, s.Ageing.Linger, s.Ageing.Idle = clienttable.RemoveOnEndEntryPerSession, time.Second, 20*time.Second
			}
			p, twin := newPlane(t, fam, set), newPlane(t, fam, set)
			twin.now = p.now
			r := rand.New(rand.NewPCG(seed, 2))
			vip := ap(fam.vip, 80)
			for i := range 1200 {
				client := ap(fam.client, uint16(1+r.IntN(900)))
				if r.IntN(2) == 0 {
					client = ap(fam.client2, client.Port())
				}
				var b []byte
				switch r.IntN(8) {
				case 0, 1, 2:
					b = tcp(client, vip, "S", 100, 0, "")
				case 3:
					b = tcp(client, vip, "A", 101, 501, "data")
				case 4:
					b = tcp(ap(fam.n1, 8080), client, "SA", 500, 101, "")
				case 5:
					b = tcp(client, vip, "FA", 105, 501, "")
				case 6:
					b = udp(client, vip, "x")
				default:
					b = tcp(ap(fam.n2, 8080), client, "R", 500, 101, "")
				}
				v, out := p.send(b)
				tv, tout := twin.send(b)
				require.Equal(t, tv, v, "packet %d", i)
				require.Equal(t, tout, out, "packet %d", i)
				switch r.IntN(60) {
				case 0:
					st := p.Stats()
					require.NoError(t, p.SetMaxSessions(st.Sessions+500+r.IntN(5000)))
					require.NoError(t, p.SetMaxAssociations(st.Associations+500+r.IntN(5000)))
				case 1, 2, 3, 4:
					p.now = p.now.Add(time.Duration(r.IntN(700)) * time.Millisecond)
					twin.now = p.now
					require.NoError(t, p.reclaim(p.now))
					p.Step(p.now)
					twin.Step(twin.now)
				}
			}
			st, want := p.Stats(), twin.Stats()
			require.NotZero(t, st.Sessions)
			st.MaxSessions, st.MaxAssociations = want.MaxSessions, want.MaxAssociations
			require.Equal(t, want, st)
			require.Equal(t, twin.drops(), p.drops())
			sessions := func(p *testPlane) map[clienttable.Flow]Session {
				m := map[clienttable.Flow]Session{}
				for s := range p.Sessions() {
					s.Begun, s.Last = time.Time{}, time.Time{}
					m[s.key()] = s
				}
				return m
			}
			require.Equal(t, sessions(twin), sessions(p))
		}
	})
}

// TestCapacityUnderLoad: while packets of a thousand sessions flow through a running Plane and its number of workers changes, its capacity goes
// up and down. Every packet comes out, at the node where its session is.
func TestCapacityUnderLoad(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		const sessions, packets = 500, 6000
		p := newTeamed(t, fam, func(c *Config, _ *Service) { c.MaxSessions, c.MaxAssociations, c.Workers = sessions+64, sessions, 2 })
		vip := ap(fam.vip, 80)
		got, done := p.stay(packets)
		resized, begun := make(chan int, 1), make(chan struct{})
		stop := make(chan struct{})
		go func() {
			n := 0
			defer func() { resized <- n }()
			for {
				for _, size := range []int{4000, 700, 6000, sessions + 64, 9000} {
					select {
					case <-stop:
						return
					default:
					}
					if err := p.SetMaxSessions(size); err != nil {
						p.t.Error(err)
					}
					if err := p.SetMaxAssociations(size); err != nil {
						p.t.Error(err)
					}
					if err := p.reclaim(time.Now()); err != nil {
						p.t.Error(err)
					}
					if n++; n == 1 {
						close(begun)
					}
					if n%5 == 0 {
						if err := p.SetWorkers(n % 3); err != nil {
							p.t.Error(err)
						}
					}
					for deadline := time.Now().Add(30 * time.Second); p.growing() && time.Now().Before(deadline); {
						time.Sleep(100 * time.Microsecond)
					}
				}
			}
		}()
		var payload [4]byte
		for i := range uint32(packets) {
			binary.BigEndian.PutUint32(payload[:], i)
			if i == packets/2 {
				<-begun
			}
			for deadline := time.Now().Add(30 * time.Second); i-got.Load() > 200; time.Sleep(50 * time.Microsecond) {
				require.True(t, time.Now().Before(deadline), "packets are lost: %v", p.drops())
			}
			p.outs[0].send(udp(ap(fam.client, 10000+uint16(i%sessions)), vip, string(payload[:])))
		}
		require.Empty(t, <-done)
		close(stop)
		require.Positive(t, <-resized)
		require.Equal(t, sessions, p.Stats().Sessions)
		require.Empty(t, p.drops())
	})
}

// TestCapacityAtOnce has workers make and end sessions in both directions, while the capacity changes from far too little to far too much. It is for the
// race detector, and checks that in the end every count is back at zero.
func TestCapacityAtOnce(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.MaxSessions, c.MaxAssociations = 300, 300
		s.Mode, s.Ageing.Linger = clienttable.RemoveOnEndEntryPerSession, time.Second
		s.ServerLost = Silent // has lost ones remembered
	})
	vip := ap(fam.vip, 80)
	var wg sync.WaitGroup
	rounds := 150
	for i := range 3 {
		w := p.NewWorker(Link{})
		r := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for round := range rounds {
				now := p.now.Add(time.Duration(round) * 100 * time.Millisecond)
				var bufs [][]byte
				var sizes []int
				for range 20 {
					client := ap(fam.client, uint16(1+r.IntN(800)))
					b := [][]byte{
						tcp(client, vip, "S", 100, 0, ""), tcp(client, vip, "A", 101, 501, "data"), tcp(client, vip, "FA", 105, 501, ""),
						tcp(ap(fam.n1, 8080), client, "SA", 500, 101, ""), tcp(ap(fam.n2, 8080), client, "R", 500, 101, ""), udp(client, vip, "x"),
					}[r.IntN(6)]
					bufs, sizes = append(bufs, append(make([]byte, ReadOffset), b...)), append(sizes, len(b))
				}
				w.Process(now, bufs, sizes, ReadOffset, make([]Verdict, len(bufs)))
			}
		})
	}
	wg.Go(func() {
		r := rand.New(rand.NewPCG(9, 9))
		for round := range rounds {
			now := p.now.Add(time.Duration(round) * 100 * time.Millisecond)
			if err := p.SetMaxSessions(1 + r.IntN(3000)); err != nil {
				panic(err)
			}
			if err := p.SetMaxAssociations(1 + r.IntN(3000)); err != nil {
				panic(err)
			}
			p.SetUp("n1", round%20 < 15)
			for range r.IntN(4) {
				p.Step(now)
			}
			if err := p.reclaim(now); err != nil {
				panic(err)
			}
			p.Stats()
			n := 0
			for range p.Sessions() {
				n++
			}
			if round%50 == 0 {
				var b bytes.Buffer
				if _, err := p.WriteTo(&b); err != nil {
					panic(err)
				}
			}
		}
	})
	wg.Wait()
	p.now = p.now.Add(time.Hour)
	p.carried()
	for range 10 {
		p.Step(p.now)
	}
	require.Zero(t, p.Stats().Sessions)
	require.Zero(t, p.sessions().Len())
	require.Zero(t, p.slab.taken())
	for _, st := range p.pool.All() {
		require.Zero(t, st.Sessions, st.Node.Name)
	}
}

// TestCapacitySaved: a state is whole although there are more sessions than there may be from now on, and a Plane with less room takes what fits, and
// counts the rest.
func TestCapacitySaved(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		vip := ap(fam.vip, 80)
		for i := range uint16(500) {
			v, _ := p.send(udp(ap(fam.client, i+1), vip, "x"))
			require.Equal(t, Forwarded, v)
		}
		require.NoError(t, p.SetMaxSessions(100))
		require.NoError(t, p.SetMaxAssociations(100))
		var saved bytes.Buffer
		_, err := p.WriteTo(&saved)
		require.NoError(t, err)
		for room, want := range map[int]int{1000: 500, 500: 500, 200: 200} {
			q := newPlane(t, fam, func(c *Config, _ *Service) { c.MaxSessions = room })
			res, err := q.Restore(bytes.NewReader(saved.Bytes()))
			require.NoError(t, err)
			require.Equal(t, want, res.Sessions)
			require.Equal(t, 500-want, res.Refused)
			require.NoError(t, q.SetMaxSessions(600))
			res, err = q.Restore(bytes.NewReader(saved.Bytes()))
			require.NoError(t, err)
			require.Equal(t, 500-want, res.Sessions, "the others are there")
			require.Equal(t, 500, q.Stats().Sessions)
		}
	})
}

// TestCapacityFollowed: a balancer that follows the associations notices nothing of a change of their number.
func TestCapacityFollowed(t *testing.T) {
	fam := families2()[0]
	set := func(c *Config, _ *Service) { c.AssociationChanges = 1000 }
	a, b := newPlane(t, fam, set), newPlane(t, fam, set)
	vip := ap(fam.vip, 80)
	from := a.Replicas()["associations"]
	to := b.Replicas()["associations"]
	seq := from.LastSeq()
	follow := func(want int) {
		t.Helper()
		msg, last, err := from.AppendChanges(nil, seq, 1<<20)
		require.NoError(t, err)
		require.NoError(t, to.Apply(msg))
		seq = last
		require.Equal(t, want, b.Stats().Associations)
	}
	for i := range 100 {
		client := ap(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 1000)
		v, _ := a.send(udp(client, vip, "x"))
		require.Equal(t, Forwarded, v)
		switch i {
		case 20:
			require.NoError(t, a.SetMaxAssociations(5000))
		case 40:
			require.NoError(t, b.SetMaxAssociations(5000))
		case 60:
			require.NoError(t, a.SetMaxAssociations(200))
			require.NoError(t, a.reclaim(a.now))
		case 80:
			require.NoError(t, b.SetMaxAssociations(200))
			a.carried()
			b.carried()
		}
		if i%10 == 5 {
			follow(i + 1)
		}
	}
	follow(100)
	require.Equal(t, 100, a.Stats().Associations)
}

// TestCapacityAllocs: after a change, and during one, packets of sessions cost no allocation.
func TestCapacityAllocs(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		client, vip := ap(fam.client, 1), ap(fam.vip, 80)
		p.open(client)
		b := tcp(client, vip, "A", 101, 501, "data")
		buf, sizes := [][]byte{make([]byte, ReadOffset+len(b))}, []int{len(b)}
		var v [1]Verdict
		once := func() {
			copy(buf[0][ReadOffset:], b)
			p.Process(p.now, buf, sizes, ReadOffset, v[:])
			require.Equal(t, Forwarded, v[0])
		}
		for _, n := range []int{5000, 10, 8000} {
			require.NoError(t, p.SetMaxSessions(n))
			require.Zero(t, testing.AllocsPerRun(100, once))
			p.carried()
			require.NoError(t, p.reclaim(p.now))
			require.Zero(t, testing.AllocsPerRun(100, once))
		}
	})
}

// TestRunReclaims: Run has memory go that is not needed any more.
func TestRunReclaims(t *testing.T) {
	a, b, err := devtest.Pair(&devtest.Config{Virtio: true})
	require.NoError(t, err)
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) { c.Devices = []Device{a} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	was := p.sessions().Stats().Bytes
	require.NoError(t, p.SetMaxSessions(2000))
	large := p.sessions().Stats().Bytes
	require.Greater(t, large, was)
	require.NoError(t, p.SetMaxSessions(100))
	require.Eventually(t, func() bool { return p.sessions().Stats().Bytes < was/2 }, 30*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	b.Close()
}

// TestSettings: what happens to foreign packets and to pings changes while packets flow, and no session ends for it.
func TestSettings(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam)
		vip := ap(fam.vip, 80)
		client := ap(fam.client, 1)
		node := p.open(client)
		foreign, ping := udp(client, ap(fam.elsewhere, 53), "x"), echo(fam.client, fam.vip, false, 7, 1, "ping")
		want := func(b []byte, want Verdict) {
			t.Helper()
			v, _ := p.send(b)
			require.Equal(t, want, v)
		}
		want(foreign, Passed)
		require.NoError(t, p.SetForeign(Drop))
		want(foreign, Dropped)
		require.ErrorContains(t, p.SetForeign(Drop+1), "Foreign = 2: want pass or drop")
		want(foreign, Dropped)
		want(ping, Answered)
		for n, v := range map[int]Verdict{-1: Dropped, 3: Dropped, 2: Answered, 0: Answered} {
			p.SetPingNodes(n)
			want(ping, v)
		}
		p.SetPingNodes(-1)
		require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", p.svc))), "which leaves both alone")
		p.SetUp("n1", true)
		want(foreign, Dropped)
		want(ping, Dropped)
		require.NoError(t, p.SetForeign(Pass))
		want(foreign, Passed)
		p.forwarded(tcp(client, vip, "AP", 101, 501, "x"), client, node)
	})
}

// What goes wrong each second is told once, and told again when it is another thing.
func TestReclaimTellsOnce(t *testing.T) {
	var log bytes.Buffer
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	told := ""
	for _, err := range []error{nil, errors.New("first"), errors.New("first"), errors.New("first"), errors.New("second"), nil, nil, errors.New("first")} {
		told = p.tellReclaim(err, told)
	}
	require.Equal(t, 2, strings.Count(log.String(), "first"))
	require.Equal(t, 1, strings.Count(log.String(), "second"))
	require.Equal(t, 4, strings.Count(log.String(), "\n"), log.String())
}
