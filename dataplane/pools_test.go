package dataplane

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/devtest"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

func timedPool(t *testing.T, fam family, m steering.Metric, ids *steering.IDs) *steering.Pool {
	p, err := steering.NewPool(&steering.Config{Metric: m, RecoveryTime: 5 * time.Second, Interval: 10 * time.Second, IDs: ids},
		steering.Node{Name: "n1", Addr: ap(fam.n1, 8080)}, steering.Node{Name: "n2", Addr: ap(fam.n2, 8080)})
	require.NoError(t, err)
	return p
}

// shares opens sessions and says how many each node got.
func (p *testPlane) shares(from uint16, n int) (first, second int) {
	for i := range n {
		_, out := p.send(tcp(ap(p.fam.client, from+uint16(i)), ap(p.fam.vip, 80), "S", 1, 0, ""))
		if out == nil {
			continue
		}
		if f, _ := parseFlow(out); f.Dst.Addr() == p.fam.n1 {
			first++
		} else {
			second++
		}
	}
	return first, second
}

// TestStepEndsRecovery has Step alone bring a node back after its recovery time.
func TestStepEndsRecovery(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlane(t, fam, func(_ *Config, s *Service) {
				s.Pool, s.Mode = timedPool(t, fam, steering.RoundRobin, new(steering.IDs)), 4
			})
			p.SetUp("n1", false)
			p.SetUp("n1", true)
			first, second := p.shares(1000, 10)
			require.Equal(t, [2]int{0, 10}, [2]int{first, second})
			time.Sleep(6 * time.Second)
			p.now = time.Now()
			p.Step(p.now)
			first, second = p.shares(2000, 10)
			require.Equal(t, [2]int{5, 5}, [2]int{first, second})
		})
	})
}

// TestRunDrivesPools does the same by Run, for a pool that comes while it runs, too, and ends what it began.
func TestRunDrivesPools(t *testing.T) {
	fam := families2()[0]
	synctest.Test(t, func(t *testing.T) {
		a, b, err := devtest.Pair(nil)
		require.NoError(t, err)
		defer b.Close()
		ids := new(steering.IDs)
		p := newPlane(t, fam, func(c *Config, s *Service) {
			c.Devices = []Device{a}
			s.Pool, s.Mode = timedPool(t, fam, steering.RoundRobin, ids), 4
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Run(ctx) })
		for i := range 2 {
			if i == 1 {
				s := *p.svc
				s.Pool = timedPool(t, fam, steering.Bandwidth, ids)
				require.NoError(t, p.Apply(table(t, rule("tcp", fam.vip.String()+" tcp/80", &s))))
			}
			time.Sleep(2 * time.Second)
			p.now = time.Now()
			p.SetUp("n1", false)
			p.SetUp("n1", true)
			first, second := p.shares(uint16(1000+1000*i), 10)
			require.Equal(t, [2]int{0, 10}, [2]int{first, second})
			// The new pool's metric has seen what n2 moved by then, so that n1 gets more.
			time.Sleep(30 * time.Second)
			p.now = time.Now()
			first, _ = p.shares(uint16(5000+1000*i), 10)
			require.Positive(t, first)
		}
		cancel()
		wg.Wait()
	})
}

// TestOctetsReachBandwidth has one node move much more than the other.
func TestOctetsReachBandwidth(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		p := newPlane(t, fam, func(_ *Config, s *Service) {
			s.Pool, s.Mode = timedPool(t, fam, steering.Bandwidth, new(steering.IDs)), 4
		})
		p.shares(1000, 10)
		p.SetUp("n1", false)
		for range 100 {
			p.send(udp(ap(fam.client, 999), ap(fam.vip, 80), string(make([]byte, 1000))))
		}
		p.now = p.now.Add(time.Second)
		p.SetUp("n1", true)
		p.Step(p.now)
		p.svc.Pool.Tick()
		p.now = p.now.Add(9 * time.Second)
		p.Step(p.now)
		first, second := p.shares(2000, 60)
		require.Greater(t, first, 2*second)
	})
}

func TestObserveHealth(t *testing.T) {
	fam := families2()[0]
	p := newPlane(t, fam, func(_ *Config, s *Service) {
		s.Pool, s.Mode = timedPool(t, fam, steering.Response, new(steering.IDs)), 4
	})
	tell := p.ObserveHealth()
	for range 20 {
		tell(healthcheck.Check{ID: "n1"}, healthcheck.Result{Verdict: healthcheck.Pass, Latency: 100 * time.Millisecond}, healthcheck.Status{})
		tell(healthcheck.Check{ID: "n2"}, healthcheck.Result{Verdict: healthcheck.Pass, Latency: 10 * time.Millisecond}, healthcheck.Status{})
		tell(healthcheck.Check{ID: "n2"}, healthcheck.Result{Verdict: healthcheck.Fail, Latency: time.Minute}, healthcheck.Status{})
		tell(healthcheck.Check{ID: "other"}, healthcheck.Result{Verdict: healthcheck.Pass, Latency: time.Second}, healthcheck.Status{})
	}
	first, second := p.shares(2000, 110)
	require.Greater(t, second, 4*first)
}
