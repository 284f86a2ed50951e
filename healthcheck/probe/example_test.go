package probe_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// A web server that answers, and one that is out of order.
func ExampleHTTP() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	target := netip.MustParseAddrPort(server.Listener.Addr().String())

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	res := probe.HTTP{}.Probe(ctx, target)
	fmt.Println(res.Verdict)
	res = probe.HTTP{
		Path:     "/broken",
		Ranges:   []probe.StatusRange{{First: 200, Last: 204}, {First: 304}},
		FailFast: true,
	}.Probe(ctx, target)
	fmt.Println(res.Verdict, res.Final)
	fmt.Println(res.Err)
	// Output:
	// pass
	// fail true
	// http: reply: got "HTTP/1.1 503 Service Unavailable", want status 200-204, 304
}

// Every kind of prober, as the checks of a monitor would have them.
func Example() {
	var d probe.Dialer = probe.Socket{Source: netip.MustParseAddr("192.0.2.10"), DSCP: 10}
	probers := []healthcheck.Prober{
		probe.ICMP{},
		probe.TCP{Dialer: d},
		probe.TCPHalfOpen{Socket: probe.Socket{Interface: "eth1"}},
		probe.UDP{Payload: []byte("status\n"), Expect: []byte("ok")},
		probe.FTP{}, probe.NNTP{}, probe.Telnet{}, probe.MMS{}, probe.PNM{},
		probe.SMTP{Hello: "lb.example.com", StartTLS: true},
		probe.POP3{}, probe.IMAP{Dialer: probe.TLSDialer{Config: &tls.Config{ServerName: "mail.example.com"}}},
		probe.HTTP{Method: "GET", Path: "/health", Host: "www.example.com"},
		probe.TLSHello{},
		probe.TLS{Config: &tls.Config{ServerName: "www.example.com"}, MinValidity: 7 * 24 * time.Hour},
		probe.LDAP{DN: "cn=check,dc=example,dc=com", Password: "secret"},
		probe.RTSP{},
		probe.DNS{Name: "www.example.com", Zone: "example.com"},
		probe.RADIUS{Key: "secret", StatusServer: true},
		probe.TFTP{File: "pxelinux.0"},
		probe.GRPC{Service: "shop.Cart"},
		probe.Redis{Password: "secret"}, probe.MySQL{User: "check"}, probe.Postgres{User: "check"},
		probe.Script{Steps: []probe.Step{
			{Match: regexp.MustCompile(`^READY `)},
			{Name: "version", Send: []byte("VERSION\n"), Expect: []byte("2."), Line: true},
		}},
		probe.Command{Path: "/usr/lib/nagios/plugins/check_ssh", Args: []string{"-p", "{port}", "{addr}"}, InconclusiveStatus: []int{3}},
		probe.Agent{},
	}
	faults := 0
	for _, p := range probers {
		if v, ok := p.(interface{ Validate() error }); ok && v.Validate() != nil {
			faults++
		}
	}
	fmt.Println(len(probers), "probers,", faults, "faults")
	// Output: 27 probers, 0 faults
}

// A prober that lacks what it cannot do without says so, and decides nothing.
func ExampleRADIUS() {
	target := netip.MustParseAddrPort("192.0.2.1:1812")
	res := probe.RADIUS{}.Probe(context.Background(), target)
	fmt.Println(res.Verdict)
	fmt.Println(errors.Is(res.Err, healthcheck.ErrLocal))
	fmt.Println(res.Err)
	// Output:
	// inconclusive
	// true
	// radius: configuration: local: probe: RADIUS.Key: got none, want the secret shared with the server
}

// The prober that a method of the port table stands for.
func ExampleFor() {
	check, err := healthcheck.PortProfile{Port: 25, Transport: healthcheck.OverTCP}.Resolve()
	if err != nil {
		fmt.Println(err)
		return
	}
	p, ok := probe.For(check.Method)
	fmt.Printf("%v %T %v\n", check.Method, p, ok)
	// Output: smtp probe.SMTP true
}
