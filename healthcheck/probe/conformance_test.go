package probe_test

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// TestConformance runs the suite that any prober can run, in real time, on probers of
// each sort: text, binary, inside records, datagrams. The other tests of this package have all of
// them go through the same in a bubble.
func TestConformance(t *testing.T) {
	serve := func(f func(*peer)) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort {
			return healthchecktest.Serve(t, func(c net.Conn) { f(newPeer(c)) })
		}
	}
	dns := func(f func(*dnsmessage.Message)) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort { return dnsServer(t, "127.0.0.1", f) }
	}
	for name, row := range map[string]struct {
		p   healthcheck.Prober
		env healthchecktest.Env
	}{
		"http": {probe.HTTP{}, healthchecktest.Env{TCP: true,
			Good: serve(answer("HTTP/1.1 200 OK\r\n\r\n")), Bad: serve(answer("HTTP/1.1 500 No\r\n\r\n"))}},
		"smtp": {probe.SMTP{}, healthchecktest.Env{TCP: true,
			Good: serve(func(p *peer) { p.say("220 x\r\n"); p.hear(); p.say("221 x\r\n"); p.drain() }), Bad: serve(greet("554 no\r\n"))}},
		"redis": {probe.Redis{}, healthchecktest.Env{TCP: true,
			Good: serve(after(14, "+PONG\r\n")), Bad: serve(after(14, "-LOADING\r\n"))}},
		"tls hello": {probe.TLSHello{}, healthchecktest.Env{TCP: true,
			Good: serve(after(5, unhex("15 0301 0002 0228"))), Bad: serve(after(5, "HTTP/1.1 400 Bad Request\r\n"))}},
		"ldap": {probe.LDAP{}, healthchecktest.Env{TCP: true,
			Good: serve(after(14, unhex("300c02010161070a010004000400"))), Bad: serve(after(14, unhex("300c02010161070a010104000400")))}},
		"dns": {probe.DNS{Name: "a", Retries: -1}, healthchecktest.Env{
			Good: dns(zoneServer), Bad: dns(func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeServerFailure }),
			Hang: func(t *testing.T) netip.AddrPort { return udpServer(t, "127.0.0.1", silent) },
			Dead: func(t *testing.T) netip.AddrPort { return closedUDP(t, "127.0.0.1") }}},
	} {
		t.Run(name, func(t *testing.T) { healthchecktest.TestProber(t, row.p, row.env) })
	}
}
