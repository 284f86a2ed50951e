package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

// Two servers whose ports are up only while the database is: one element, probed
// once, in a policy attached to both ports.
func ExampleRoster() {
	web := healthchecktest.Script(healthcheck.Passed(""))
	db := healthchecktest.Script(healthcheck.Result{Verdict: healthcheck.Fail, Final: true})

	events := make(chan string, 10)
	r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{
		OnPort: func(t healthcheck.PortTransition) {
			if t.To == healthcheck.Failed {
				events <- fmt.Sprintf("%s/%s %v", t.Status.Server, t.Status.Port, t.To)
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	expr, err := healthcheck.ParseExpr("web AND NOT (NOT db)")
	if err != nil {
		fmt.Println(err)
		return
	}
	check := func(id, target string, p healthcheck.Prober) healthcheck.Check {
		return healthcheck.Check{ID: id, Target: netip.MustParseAddrPort(target), Prober: p, Interval: 20 * time.Millisecond}
	}
	port := healthcheck.Port{Port: 80, Policy: "shop"}
	err = r.Set(healthcheck.Setup{
		Elements: []healthcheck.Check{check("web", "192.0.2.1:80", web), check("db", "[2001:db8::5]:5432", db)},
		Policies: []healthcheck.Policy{{Name: "shop", Expr: expr}},
		Servers: []healthcheck.Server{
			{Name: "s1", Addr: netip.MustParseAddr("192.0.2.1"), Ports: []healthcheck.Port{port}},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	fmt.Println(<-events)
	fmt.Println(r.Explain("s1", "80"))
	cancel()
	<-done
	// Output:
	// s1/80 failed
	// s1/80 is failed by policy shop; shop is down: db down [web AND NOT NOT db] <nil>
}

func ExampleMatchList() {
	l, err := healthcheck.NewMatchList(healthcheck.Pass,
		healthcheck.MatchRule{Text: "elephantine", Verdict: healthcheck.Pass},
		healthcheck.MatchRule{Text: "elephant", Verdict: healthcheck.Fail},
		healthcheck.MatchRule{Kind: healthcheck.MatchCompound, Text: "<error>", End: "</error>", Verdict: healthcheck.Fail},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := l.Scan()
	for _, chunk := range []string{"an elep", "hantine task, an ele", "phant"} {
		fmt.Fprint(s, chunk)
		fmt.Println(s.Decided())
	}
	v, hit := s.Finish()
	fmt.Println(v, "-", l.Describe(hit))
	// Output:
	// false
	// true
	// true
	// pass - rule 0 (simple "elephantine") matched at byte 3: pass
}

func ExampleCompilePolicies() {
	expr, err := healthcheck.ParseExpr("(web1 AND db1) OR NOT maint")
	if err != nil {
		fmt.Println(err)
		return
	}
	ps, err := healthcheck.CompilePolicies([]string{"web1", "db1", "maint"}, healthcheck.Policy{Name: "p", Expr: expr})
	if err != nil {
		fmt.Println(err)
		return
	}
	states := map[string]healthcheck.Truth{"web1": healthcheck.IsDown, "maint": healthcheck.IsUp}
	why, _ := ps.Explain("p", func(element string) healthcheck.Truth { return states[element] })
	fmt.Println(why) // db1 is unknown, but nothing depends on it
	for _, d := range why.Decided {
		fmt.Println(d.Element, d.Truth)
	}

	_, err = healthcheck.CompilePolicies(nil,
		healthcheck.Policy{Name: "a", Expr: healthcheck.Name("b")},
		healthcheck.Policy{Name: "b", Expr: healthcheck.Not(healthcheck.Name("a"))})
	fmt.Println(err)
	// Output:
	// p is down: web1 down, maint up [web1 AND db1 OR NOT maint]
	// web1 down
	// maint up
	// healthcheck: policies form a cycle: a → b → a
}

func ExamplePortProfile_Resolve() {
	for _, p := range []healthcheck.PortProfile{
		{Port: 21},
		{Port: 8080},
		{Port: 8080, Transport: healthcheck.OverTCP},
		{Port: 8080, Transport: healthcheck.OverTCP, Method: healthcheck.HTTP},
		{Port: 8080, Transport: healthcheck.OverTCP, Layer: healthcheck.Layer7, Element: true},
	} {
		c, err := p.Resolve()
		fmt.Println(p.Port, c.Transport, c.Method, err)
	}
	// Output:
	// 21 tcp ftp <nil>
	// 8080 udp udp <nil>
	// 8080 tcp tcp <nil>
	// 8080 tcp http <nil>
	// 8080 any none healthcheck: port 8080: no Layer 7 method: Layer 7 is on and no protocol is named
}

func ExampleSlowStart() {
	s := healthcheck.SlowStart{Mode: healthcheck.ServerSlowStart}
	for _, t := range []time.Duration{5, 20, 21, 30} {
		fmt.Println(t*time.Second, s.Sessions(t*time.Second, 1000))
	}
	l := healthcheck.SlowStart{Mode: healthcheck.LinearSlowStart, Window: 10 * time.Second}
	fmt.Println(l.Weight(5*time.Second, 100, -1))
	// Output:
	// 5s 50
	// 20s 200
	// 21s 420
	// 30s 1000
	// 50
}

func ExampleSYNCount() {
	var c healthcheck.SYNCount
	for i := 1; i <= 21; i++ {
		if c.SYN() {
			fmt.Println("failed at SYN", i)
		}
	}
	c.SYNACK()
	fmt.Println(c.Failed())
	// Output:
	// failed at SYN 21
	// false
}

func ExampleParseAgent() {
	r, err := healthcheck.ParseAgent("75%, maxconn:30, down # disk full\n")
	fmt.Println(r.Weight, r.MaxConn, r.Result().Err, err)
	// Output: 75 30 agent says down: disk full <nil>
}

func ExampleNextPort() {
	s := healthcheck.Enabled
	for _, e := range []healthcheck.Event{healthcheck.ServerUp, healthcheck.Rise, healthcheck.FailOnce, healthcheck.Fall} {
		s = healthcheck.NextPort(s, e)
		fmt.Println(e, s, s.Usable())
	}
	// Output:
	// server-up testing false
	// rise active true
	// fail suspect true
	// fall failed false
}

// echoes is a prober that needs no goroutine while it waits: others call done.
type echoes struct{}

func (echoes) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	var scope healthcheck.Scope
	defer scope.Close()
	results := make(chan healthcheck.Result, 1)
	deadline, _ := ctx.Deadline()
	defer echoes{}.Start(&scope, target, deadline, func(r healthcheck.Result) { results <- r })()
	return <-results
}

func (echoes) Start(_ *healthcheck.Scope, target netip.AddrPort, deadline time.Time, done func(healthcheck.Result)) (stop func()) {
	var once sync.Once
	end := func(r healthcheck.Result) { once.Do(func() { done(r) }) }
	// A real one would send here, and have what receives for all call end.
	t := time.AfterFunc(time.Millisecond, func() { end(healthcheck.Passed("echo")) })
	return func() {
		t.Stop()
		end(healthcheck.Undecided("echo", target, context.Canceled))
	}
}

// A prober of one's own that a running Monitor starts instead of calling it.
func ExampleStarter() {
	var p healthcheck.Starter = echoes{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := p.Probe(ctx, netip.MustParseAddrPort("192.0.2.1:7"))
	fmt.Println(r.Verdict, r.Note)
	// Output: pass echo
}

// line is what probes of a Starter of one's own may share: here something that says when it is closed.
type line struct{ name string }

func (l *line) Close() error { fmt.Println("closed:", l.name); return nil }

// What probes share is opened by the first that needs it and closed with the Scope, which a Monitor does at the end of Run.
func ExampleScope() {
	type key struct{} // that no other prober can name
	var shared healthcheck.Scope
	for range 2 {
		c, err := shared.Load(key{}, func() (io.Closer, error) {
			fmt.Println("opened")
			return &line{"one for all"}, nil
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(c.(*line).name)
	}
	fmt.Println(shared.Close())
	_, err := shared.Load(key{}, nil)
	fmt.Println(errors.Is(err, healthcheck.ErrScopeClosed))
	// Output:
	// opened
	// one for all
	// one for all
	// closed: one for all
	// <nil>
	// true
}
