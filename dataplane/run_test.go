package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane/devtest"
	"github.com/lbprim/lbprim/steering"
)

// outside is the other end of a plane's device.
type outside struct {
	*devtest.Device
	t testing.TB
}

func (o outside) send(b []byte) {
	_, err := o.Write([][]byte{append(make([]byte, Headroom), b...)}, Headroom)
	require.NoError(o.t, err)
}

func (o outside) receive() []byte {
	buf, sizes := [][]byte{make([]byte, bufferSize)}, []int{0}
	n, err := o.Read(buf, sizes, Headroom)
	require.NoError(o.t, err)
	require.Equal(o.t, 1, n)
	return buf[0][Headroom : Headroom+sizes[0]]
}

func TestRun(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		var devs []Device
		var outs []outside
		for range 2 {
			a, b, err := devtest.Pair(&devtest.Config{Virtio: true, Batch: 1})
			require.NoError(t, err)
			devs, outs = append(devs, a), append(outs, outside{b, t})
		}
		p := newPlane(t, fam, func(c *Config, _ *Service) { c.Devices = devs })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		outs[0].send(tcp(client, vip, "S", 100, 0, ""))
		out := outs[0].receive()
		f, _ := parseFlow(out)
		p.wellFormed(out, client, f.Dst)
		outs[1].send(tcp(f.Dst, client, "SA", 500, 101, "")) // the other queue knows it, too
		p.wellFormed(outs[1].receive(), vip, client)
		cancel()
		require.NoError(t, <-done)
		require.EqualValues(t, 2, p.Stats().Written.Packets)
	})
}

type brokenDevice struct{ Device }

var errBroken = errors.New("broken")

func (brokenDevice) Read([][]byte, []int, int) (int, error) { return 0, errBroken }
func (brokenDevice) BatchSize() int                         { return 1 }
func (brokenDevice) Close() error                           { return nil }

func TestRunReportsTheDevicesError(t *testing.T) {
	p := newPlane(t, families2()[0], func(c *Config, _ *Service) { c.Devices = []Device{brokenDevice{}} })
	require.ErrorIs(t, p.Run(t.Context()), errBroken)
	require.ErrorIs(t, newPlane(t, families2()[0]).Run(t.Context()), ErrInvalid)
}

// fussyDevice refuses every third packet.
type fussyDevice struct {
	brokenDevice
	n int
}

func (d *fussyDevice) Write(bufs [][]byte, _ int) (int, error) {
	for i := range bufs {
		if d.n++; d.n%3 == 0 {
			return i, os.ErrInvalid
		}
	}
	return len(bufs), nil
}

func TestWriteGoesOnAfterAnError(t *testing.T) {
	p := newPlane(t, families2()[0])
	d := new(fussyDevice)
	require.NoError(t, p.own.write(d, make([][]byte, 10)))
	require.Equal(t, 10, d.n)
	require.EqualValues(t, 3, p.drops()[WriteFailed])
}

// TestEverythingAtOnce has several workers handle both directions of the same sessions
// while nodes come and go, tables are exchanged and entries age. It is for the race detector,
// and checks that in the end every count is back at zero.
func TestEverythingAtOnce(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(c *Config, s *Service) {
		c.MaxSessions = 300
		s.Mode = clienttable.RemoveOnEndEntryPerSession
		s.Ageing.Linger = time.Second
		c.Addrs = []netip.Addr{fam.elsewhere}
	})
	tunnelled := &Service{Name: "web", Pool: p.pool, Forward: Tunnelled}
	regular := &Service{Name: "reg", Pool: p.pool, Mode: clienttable.Regular}
	vip := ap(fam.vip, 80)
	start := p.now
	var wg sync.WaitGroup
	rounds := 120
	for i := range 3 {
		w := p.NewWorker(Link{})
		r := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Go(func() {
			for round := range rounds {
				now := start.Add(time.Duration(round) * 100 * time.Millisecond)
				var bufs [][]byte
				var sizes []int
				add := func(b []byte) {
					bufs = append(bufs, append(make([]byte, ReadOffset), b...))
					sizes = append(sizes, len(b))
				}
				for range 20 {
					client := ap(fam.client, uint16(1+r.IntN(500)))
					if r.IntN(2) == 0 {
						client = ap(fam.client2, client.Port())
					}
					switch r.IntN(9) {
					case 0, 1:
						add(tcp(client, vip, "S", 100, 0, ""))
					case 2:
						add(tcp(client, vip, "A", 101, 501, "data"))
					case 3:
						add(tcp(client, vip, "FA", 105, 501, ""))
					case 4:
						add(tcp(ap(fam.n1, 8080), client, "SA", 500, 101, ""))
					case 5:
						add(tcp(ap(fam.n2, 8080), client, "R", 500, 101, ""))
					case 6:
						add(unreachable(fam.router, fam.vip, tcp(vip, client, "A", 1, 1, ""), 8))
					case 7, 8:
						for _, f := range split(tcp(client, vip, "S", 100, 0, "01234567890123456789"), 24, uint32(r.IntN(100))) {
							add(f)
						}
					}
				}
				w.Process(now, bufs, sizes, ReadOffset, make([]Verdict, len(bufs)))
			}
		})
	}
	wg.Go(func() {
		for round := range rounds {
			now := start.Add(time.Duration(round) * 100 * time.Millisecond)
			switch round % 10 {
			case 0:
				p.SetUp("n1", round%20 != 0)
			case 3:
				p.SetUp("n2", round%20 != 3)
			case 5:
				if err := p.SetNodes(p.pool, steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)}, steering.Node{Name: fmt.Sprint("n2-", round), Addr: ap(fam.n2, 8080)}); err != nil {
					panic(err)
				}
			case 8:
				if err := p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", tunnelled))); err != nil {
					panic(err)
				}
			case 6:
				if err := p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", regular))); err != nil {
					panic(err)
				}
			case 7:
				if err := p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", p.svc))); err != nil {
					panic(err)
				}
			}
			p.Step(now)
			p.Stats()
			for range p.Sessions() {
			}
			if round%50 == 0 {
				if _, err := p.WriteTo(io.Discard); err != nil {
					panic(err)
				}
			}
			p.Explain(tcp(ap(fam.client, 1), vip, "A", 101, 501, "data"))
		}
	})
	wg.Wait()
	p.now = start.Add(time.Hour)
	for range 10 {
		p.Step(p.now)
	}
	require.Zero(t, p.Stats().Sessions)
	require.Zero(t, p.sessions().Len())
	for _, st := range p.pool.All() {
		require.Zero(t, st.Sessions, st.Node.Name)
	}
	require.Positive(t, p.Stats().Written.Packets)
	t.Log(p.Stats(), p.drops())
}

// TestPrepare gives records memory ahead, again and again, and changes nothing of those in use.
func TestPrepare(t *testing.T) {
	const n = 3*readyRecords + 7
	s, err := newSlab(n, n)
	require.NoError(t, err)
	defer func() { s.forget() }()
	s.prepare()
	prepared := 1
	for i := range uint32(n) {
		at, ok := s.alloc(false)
		require.True(t, ok)
		require.Equal(t, i, at)
		require.Zero(t, s.recs[at].nodeNo)
		s.recs[at].nodeNo = i
		select {
		case <-s.low:
			s.prepare()
			prepared++
		default:
		}
	}
	_, ok := s.alloc(false)
	require.False(t, ok)
	require.GreaterOrEqual(t, prepared, 3)
	for i := range s.recs {
		require.EqualValues(t, i, s.recs[i].nodeNo)
	}
}
