package healthcheck_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

// A prober of one's own says at which step it failed and what it saw there.
func ExampleProberFunc() {
	hello := healthcheck.ProberFunc(func(ctx context.Context, target netip.AddrPort) healthcheck.Result {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", target.String())
		if err != nil {
			return healthcheck.Failure("hello: connect", target, err)
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		line, err := bufio.NewReaderSize(c, 64).ReadSlice('\n')
		if err != nil {
			return healthcheck.Failure("hello: greeting", target, err)
		}
		if string(line) != "hello\n" {
			return healthcheck.Failure("hello: greeting", target, healthcheck.Mismatch(line, "hello"))
		}
		return healthcheck.Passed("")
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			fmt.Fprintln(c, "go away")
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r := hello.Probe(ctx, ln.Addr().(*net.TCPAddr).AddrPort())
	fmt.Println(r.Verdict, r.Err)
	var pe *healthcheck.ProbeError
	var me *healthcheck.MismatchError
	fmt.Println(errors.As(r.Err, &pe) && pe.Op == "hello: greeting", errors.As(r.Err, &me) && me.Got == "go away\n")
	// Output:
	// fail hello: greeting: got "go away\n", want hello
	// true true
}

// Step probes without Run and its goroutines; History, Status and Stats show what
// came of it.
func ExampleMonitor_Step() {
	m, err := healthcheck.NewMonitor(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = m.Set(healthcheck.Check{
		ID: "web1", Target: netip.MustParseAddrPort("192.0.2.1:80"), Fall: 1,
		Prober: healthchecktest.Script(healthcheck.Passed("200 OK"), healthcheck.Result{Verdict: healthcheck.Fail, Err: errors.New("http: status: got 503")}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		if err := m.Trigger("web1"); err != nil {
			fmt.Println(err)
			return
		}
		if _, _, err := m.Step(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, r := range m.History("web1") {
		fmt.Println(r.Verdict, r.Text)
	}
	for id, st := range m.All() {
		fmt.Println(id, st.State, st.Failures, "of", st.Probes)
	}
	fmt.Println(m.Stats().Checks, m.Stats().InFlight)
	// Output:
	// pass 200 OK
	// fail http: status: got 503
	// web1 failed 1 of 2
	// 1 0
}

// A port without a check is up while its server is, until the administrator takes
// it out of service.
func ExampleRoster_SetServerAdmin() {
	r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{
		OnServer: func(t healthcheck.ServerTransition) { fmt.Println(t.Status.Server, t.To, t.Status.Admin) },
		OnPort:   func(t healthcheck.PortTransition) { fmt.Println(t.Status.Server, t.Status.Port, t.To, t.Status.Usable) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = r.Set(healthcheck.Setup{Servers: []healthcheck.Server{
		{Name: "s1", Addr: netip.MustParseAddr("192.0.2.1"), Ports: []healthcheck.Port{{Port: 80}}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := r.SetServerAdmin("s1", healthcheck.Draining); err != nil {
		fmt.Println(err)
	}
	for p := range r.Ports() {
		fmt.Println(p.State, p.KeepsSessions)
	}
	for s := range r.Servers() {
		b, err := json.Marshal(s.Admin)
		fmt.Println(s.Addr, string(b), err)
	}
	// Output:
	// s1 80 active true
	// s1 graceful draining
	// s1 80 graceful false
	// graceful true
	// 192.0.2.1 "draining" <nil>
}

// A virtual server that wants two usable servers is silent when there is only one.
func ExampleVirtual() {
	r, err := healthcheck.NewRoster(&healthcheck.RosterConfig{
		OnVirtual: func(v healthcheck.VirtualStatus) { fmt.Println(v.Name, v.Answers, v.Usable, "of", v.Servers) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	web := healthcheck.Virtual{Name: "web", MinimumServers: 2}
	setup := healthcheck.Setup{}
	for _, name := range []string{"s1", "s2", "s3"} {
		setup.Servers = append(setup.Servers, healthcheck.Server{Name: name, Addr: netip.MustParseAddr("192.0.2.1"), Ports: []healthcheck.Port{{Port: 80}}})
		web.Members = append(web.Members, healthcheck.Member{Server: name, Port: "80"})
	}
	setup.Virtuals = []healthcheck.Virtual{web}
	if err := r.Set(setup); err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"s1", "s2"} {
		if err := r.SetServerAdmin(name, healthcheck.OutOfService); err != nil {
			fmt.Println(err)
		}
	}
	v, _ := r.Virtual("web")
	fmt.Println(v.Usable, "usable, want", v.Minimum)
	// Output:
	// web true 2 of 3
	// web false 1 of 3
	// 1 usable, want 2
}

// What the data plane tells of a server's packets and of unanswered SYNs.
func ExampleRoster_Traffic() {
	r, err := healthcheck.NewRoster(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = r.Set(healthcheck.Setup{Servers: []healthcheck.Server{
		{Name: "s1", Addr: netip.MustParseAddr("2001:db8::1"), Ports: []healthcheck.Port{{Port: 80, Reassign: 6}}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	traffic, syns := r.Traffic("s1"), r.SYNs("s1", "80")
	for range 7 {
		traffic.Sent(time.Now())
		if syns.SYN() {
			fmt.Println(r.FailPassive("s1", "80"))
		}
	}
	traffic.Heard()
	st, _ := r.Port("s1", "80")
	fmt.Println(st.State, st.Err)
	// Output:
	// <nil>
	// failed passive: connections unanswered: more than 6 SYNs in a row
}

func ExamplePortSteps() {
	for _, s := range healthcheck.PortSteps() {
		if s.From == healthcheck.Failed {
			fmt.Println(s.From, s.On, s.To)
		}
	}
	// Output:
	// failed unbind unbound
	// failed rise active
	// failed rise-draining graceful
}

func ExampleWellKnownPorts() {
	for _, w := range healthcheck.WellKnownPorts() {
		if w.Transport == healthcheck.OverUDP {
			fmt.Println(w.Port, w.Method, w.Method.Layer())
		}
	}
	// Output:
	// 53 dns 7
	// 1645 radius 7
	// 1812 radius 7
}

func ExampleAgentAdmin() {
	for _, line := range []string{"75%", "drain", "maint # upgrade", "ready up"} {
		r, err := healthcheck.ParseAgent(line)
		fmt.Println(r.Admin == healthcheck.AgentAdminKeep, r.Admin, r.Reason, err)
	}
	// Output:
	// true keep  <nil>
	// false drain  <nil>
	// false maint upgrade <nil>
	// false ready  <nil>
}

func ExampleMinimumServers() {
	fmt.Println(healthcheck.MinimumServers(2, healthcheck.Active, healthcheck.Suspect, healthcheck.Failed))
	fmt.Println(healthcheck.MinimumServers(2, healthcheck.Active, healthcheck.Graceful))
	// Output:
	// true
	// false
}
