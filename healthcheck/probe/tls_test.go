package probe_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

// certificate makes one for the loopback addresses and "x.example.com", and a pool that
// trusts it.
func certificate(t testing.TB, notAfter time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: notAfter.Add(-100 * 24 * time.Hour), NotAfter: notAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, target.Addr().AsSlice()},
		DNSNames:    []string{"x.example.com"}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k, Leaf: leaf}, pool
}

func httpsServer(t testing.TB, host string, cert tls.Certificate, h http.HandlerFunc) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skip(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Listener.Close()
	s.Listener = l
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(l.Addr().String())
}

func TestTLS(t *testing.T) {
	end := time.Now().Add(10*24*time.Hour + time.Hour).Truncate(time.Second)
	good, pool := certificate(t, end)
	old, oldPool := certificate(t, time.Now().Add(-time.Hour))
	ok := func(w http.ResponseWriter, _ *http.Request) {}
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			addr := httpsServer(t, host, good, ok)
			expired := httpsServer(t, host, old, ok)
			broken := httpsServer(t, host, good, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
			plain := listen(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
				io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
				io.Copy(io.Discard, c)
			})
			checked := probe.TLS{Config: &tls.Config{RootCAs: pool}}

			res := probe.TLS{}.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.Equal(t, "certificate expires in 10 days", res.Note)
			require.True(t, res.NotAfter.Equal(end), "%v %v", res.NotAfter, end)

			require.Equal(t, healthcheck.Pass, checked.Probe(within(t, patience), addr).Verdict)
			require.Equal(t, healthcheck.Pass, probe.TLS{HandshakeOnly: true}.Probe(within(t, patience), broken).Verdict)
			require.Equal(t, healthcheck.Pass, probe.TLSHello{}.Probe(within(t, patience), addr).Verdict)
			require.Equal(t, healthcheck.Pass, probe.HTTP{Dialer: probe.TLSDialer{}}.Probe(within(t, patience), addr).Verdict)

			res = probe.TLS{}.Probe(within(t, patience), expired)
			require.Equal(t, healthcheck.Pass, res.Verdict)
			require.Contains(t, res.Note, "certificate expired at")

			for name, row := range map[string]struct {
				p    probe.TLS
				addr netip.AddrPort
				err  string
			}{
				"status":       {probe.TLS{}, broken, "tls: reply: got \"HTTP/1.1 500 Internal Server Error\""},
				"expired":      {probe.TLS{Config: &tls.Config{RootCAs: oldPool}}, expired, "tls: handshake: tls: failed to verify certificate: x509: certificate has expired"},
				"unknown CA":   {probe.TLS{Config: &tls.Config{}}, addr, "certificate signed by unknown authority"},
				"other name":   {probe.TLS{Config: &tls.Config{RootCAs: pool, ServerName: "y.example.com"}}, addr, "x.example.com, not y.example.com"},
				"soon expired": {probe.TLS{MinValidity: 30 * 24 * time.Hour}, addr, "tls: certificate: got \"a certificate that expires at"},
				"plain text":   {probe.TLS{}, plain, "first record does not look like a TLS handshake"},
				"closed":       {probe.TLS{}, closedPort(t, host), "tls: connect: connection refused"},
			} {
				t.Run(name, func(t *testing.T) {
					res := row.p.Probe(within(t, patience), row.addr)
					require.Equal(t, healthcheck.Fail, res.Verdict)
					require.ErrorContains(t, res.Err, row.err)
				})
			}
		})
	}
}

func TestTLSHang(t *testing.T) {
	addr := listen(t, "127.0.0.1:0", func(c net.Conn) { io.Copy(io.Discard, c) })
	start := time.Now()
	res := probe.TLS{}.Probe(within(t, 200*time.Millisecond), addr)
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.EqualError(t, res.Err, "tls: handshake: timed out without an answer")
	require.Less(t, time.Since(start), 20*time.Second)
}

// startTLS is a server that goes over to TLS after clear text.
func startTLS(cfg *tls.Config, clear, protected func(*peer) bool) func(*peer) {
	return func(p *peer) {
		if !clear(p) {
			return
		}
		conn := tls.Server(p.Conn, cfg)
		if conn.Handshake() != nil {
			return
		}
		q := newPeer(conn)
		if protected(q) {
			q.drain()
		}
	}
}

func TestStartTLS(t *testing.T) {
	var rows []conversation
	synctest.Test(t, func(t *testing.T) { // so that the certificate is valid in a bubble
		cert, pool := certificate(t, time.Now().Add(24*time.Hour))
		rows = startTLSRows(&tls.Config{Certificates: []tls.Certificate{cert}}, &tls.Config{RootCAs: pool})
	})
	testConversations(t, rows)
}

func startTLSRows(server, client *tls.Config) []conversation {
	yes := func(*peer) bool { return true }
	smtp := with(func(p *probe.SMTP, d memory) { p.Dialer = d }, probe.SMTP{StartTLS: true, TLS: client})
	imap := with(func(p *probe.IMAP, d memory) { p.Dialer = d }, probe.IMAP{StartTLS: true})
	pop3 := with(func(p *probe.POP3, d memory) { p.Dialer = d }, probe.POP3{StartTLS: true, TLS: client})
	ldap := ldapWith(probe.LDAP{StartTLS: true, TLS: client})
	dialogue := func(lines ...string) func(*peer) bool {
		return func(p *peer) bool {
			p.say(lines[0] + "\r\n")
			for _, l := range lines[1:] {
				if p.hear() == "" {
					return false
				}
				p.say(l + "\r\n")
			}
			return true
		}
	}
	const extended, bind = 31, 14
	ldapClear := func(reply string) func(*peer) bool {
		return func(p *peer) bool { p.take(extended); p.say(unhex(reply)); return true }
	}
	return []conversation{
		{name: "smtp", prober: smtp, want: healthcheck.Pass,
			serve: startTLS(server, dialogue("220 x", "250-x\r\n250 STARTTLS", "220 go"), func(p *peer) bool { p.hear(); p.say("250 x\r\n"); return true })},
		{name: "smtp refused", prober: smtp, want: healthcheck.Fail, err: `smtp: STARTTLS: got "454 no", want 220`,
			serve: startTLS(server, dialogue("220 x", "250 x", "454 no"), yes)},
		{name: "smtp injected", prober: smtp, want: healthcheck.Fail, err: "smtp: STARTTLS: ",
			serve: startTLS(server, dialogue("220 x", "250 x", "220 go\r\n250 injected"), yes)},
		{name: "imap", prober: imap, want: healthcheck.Pass, serve: startTLS(server, dialogue("* OK x", "* CAPABILITY X\r\na OK go"), yes)},
		{name: "imap refused", prober: imap, want: healthcheck.Fail, err: `imap: STARTTLS: got "a NO never", want A OK`, serve: startTLS(server, dialogue("* OK x", "a NO never"), yes)},
		{name: "pop3", prober: pop3, want: healthcheck.Pass, serve: startTLS(server, dialogue("+OK x", "+OK go"), yes)},
		{name: "pop3 refused", prober: pop3, want: healthcheck.Fail, err: `pop3: STLS: got "-ERR no", want +OK`, serve: startTLS(server, dialogue("+OK x", "-ERR no"), yes)},
		{name: "pop3 is no TLS", prober: pop3, want: healthcheck.Fail, err: "pop3: STLS: tls: first record does not look like a TLS handshake",
			serve: func(p *peer) {
				p.say("+OK x\r\n")
				p.hear()
				p.say("+OK go\r\n")
				p.take(20)
				p.say("-ERR what\r\n")
				p.drain()
			}},
		{name: "ldap", prober: ldap, want: healthcheck.Pass,
			serve: startTLS(server, ldapClear("300c02010178070a010004000400"), func(p *peer) bool {
				p.take(bind)
				p.say(unhex("300c02010261070a010004000400"))
				return true
			})},
		{name: "ldap refused", prober: ldap, want: healthcheck.Fail, err: `ldap: StartTLS: got "result code 2", want result code 0`,
			serve: startTLS(server, ldapClear("300c02010178070a010204000400"), yes)},
	}
}

func TestTLSDialer(t *testing.T) {
	cert, pool := certificate(t, time.Now().Add(24*time.Hour))
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	require.NoError(t, err)
	testenv.Accept(t, l, func(c net.Conn) {
		io.WriteString(c, "* OK ready\r\n")
		io.Copy(io.Discard, c)
	})
	addr := netip.MustParseAddrPort(l.Addr().String())
	res := probe.IMAP{Dialer: probe.TLSDialer{Config: &tls.Config{RootCAs: pool}}}.Probe(within(t, patience), addr)
	require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
	require.False(t, res.NotAfter.IsZero())
	res = probe.IMAP{Dialer: probe.TLSDialer{Config: &tls.Config{}}}.Probe(within(t, patience), addr)
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.ErrorContains(t, res.Err, "imap: connect: TLS handshake: ")
	_, err = probe.TLSDialer{}.DialContext(t.Context(), "udp", addr.String())
	require.ErrorContains(t, err, strings.TrimSpace(`got "udp", want tcp`))
}
