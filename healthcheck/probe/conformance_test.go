package probe_test

import (
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// TestConformance runs the suite that any prober can run, in real time, on all of them
// that need no other program.
func TestConformance(t *testing.T) {
	serve := func(f func(*peer)) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort {
			return healthchecktest.Serve(t, func(c net.Conn) { f(newPeer(c)) })
		}
	}
	udp := func(reply func([]byte) [][]byte) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort { return udpServer(t, "127.0.0.1", reply) }
	}
	tftp := func(reply string) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort { return tftpServer(t, "127.0.0.1", reply, nil) }
	}
	grpc := func(body string) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort { return h2Server(t, "127.0.0.1", nil, grpcHealth(body, "0")) }
	}
	cert, _ := certificate(t, time.Now().Add(time.Hour))
	https := func(status int) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort {
			return httpsServer(t, "127.0.0.1", cert, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		}
	}
	radius := func(code byte, ma int) func(*testing.T) netip.AddrPort {
		return udp(func(req []byte) [][]byte { return [][]byte{radiusReply{code: code, ma: ma, key: key}.answer(req)} })
	}
	mute := udp(silent)
	deaf := func(t *testing.T) netip.AddrPort { return closedUDP(t, "127.0.0.1") }
	mms := func(hr string) func(*peer) {
		return after(40, unhex("01000000 cefa0bb0 28000000 4d4d5320 07000000 0000 0000 0000000000000000"+
			"03000000 01000400"+hr+"f0f0f0ef 0b000400 1c000300"))
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
			Hang: mute, Dead: deaf}},
		"tcp":       {probe.TCP{}, healthchecktest.Env{TCP: true, SilenceIsLife: true, Good: serve((*peer).drain)}},
		"half-open": {probe.TCPHalfOpen{}, healthchecktest.Env{TCP: true, SilenceIsLife: true, Good: serve((*peer).drain)}},
		"udp": {probe.UDP{Wait: 20 * time.Millisecond}, healthchecktest.Env{SilenceIsLife: true,
			Good: udp(say("x")), Hang: mute, Dead: deaf}},
		"ftp":    {probe.FTP{}, healthchecktest.Env{TCP: true, Good: serve(greet("220-a\r\n220 b\r\n")), Bad: serve(greet("421 busy\r\n"))}},
		"nntp":   {probe.NNTP{}, healthchecktest.Env{TCP: true, Good: serve(greet("201 no posting\r\n")), Bad: serve(greet("400 gone\r\n"))}},
		"pop3":   {probe.POP3{}, healthchecktest.Env{TCP: true, Good: serve(greet("+OK\r\n")), Bad: serve(greet("-ERR locked\r\n"))}},
		"imap":   {probe.IMAP{}, healthchecktest.Env{TCP: true, Good: serve(greet("* OK ready\r\n")), Bad: serve(greet("* BYE full\r\n"))}},
		"telnet": {probe.Telnet{}, healthchecktest.Env{TCP: true, Good: serve(greet("\xff\xfd\x18")), Bad: serve(greet("login: "))}},
		"rtsp": {probe.RTSP{}, healthchecktest.Env{TCP: true,
			Good: serve(answer("RTSP/1.0 200 OK\r\nCSeq: 1\r\n\r\n")), Bad: serve(answer("RTSP/1.0 405 No\r\nCSeq: 1\r\n\r\n"))}},
		"mms": {probe.MMS{}, healthchecktest.Env{TCP: true, Good: serve(mms("00000000")), Bad: serve(mms("05000780"))}},
		"pnm": {probe.PNM{}, healthchecktest.Env{TCP: true, Good: serve(after(30, "PNA\x00\x0a")), Bad: serve(afterAndClose(30, "PN"))}},
		"radius": {probe.RADIUS{Key: key, Retries: -1}, healthchecktest.Env{
			Good: radius(2, 1), Bad: radius(2, 2), Hang: mute, Dead: deaf}},
		"tftp": {probe.TFTP{File: "x", Retries: -1}, healthchecktest.Env{
			Good: tftp("\x00\x03\x00\x01data"), Bad: tftp("\x00\x09\x00\x01"), Hang: mute, Dead: deaf}},
		"tls": {probe.TLS{}, healthchecktest.Env{TCP: true, Good: https(http.StatusOK), Bad: https(http.StatusInternalServerError)}},
		"http over tls": {probe.HTTP{Dialer: probe.TLSDialer{}}, healthchecktest.Env{TCP: true,
			Good: https(http.StatusOK), Bad: https(http.StatusInternalServerError)}},
		"grpc": {probe.GRPC{}, healthchecktest.Env{TCP: true, Good: grpc(serving), Bad: grpc("\x00\x00\x00\x00\x02\x08\x02")}},
		"mysql": {probe.MySQL{}, healthchecktest.Env{TCP: true,
			Good: serve(greet(unhex("0c000000 0a") + "8.0.36\x00" + "abcd")), Bad: serve(greet(unhex("03000000 090000")))}},
		"postgres": {probe.Postgres{}, healthchecktest.Env{TCP: true,
			Good: serve(after(23, unhex("52 00000008 00000000"))), Bad: serve(after(23, "HTTP/1.1 400\r\n"))}},
		"script": {probe.Script{Steps: []probe.Step{{Expect: []byte("ready")}}}, healthchecktest.Env{TCP: true,
			Good: serve(greet("I am ready")), Bad: serve(greetAndClose("not yet"))}},
		"agent": {probe.Agent{}, healthchecktest.Env{TCP: true, Good: serve(greet("75%\n")), Bad: serve(greet("down\n"))}},
		"icmp":  {probe.ICMP{}, healthchecktest.Env{Good: func(t *testing.T) netip.AddrPort { return mustAddr("127.0.0.1:0") }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "icmp" {
				mayPing(t)
			}
			healthchecktest.TestProber(t, row.p, row.env)
		})
	}
}
