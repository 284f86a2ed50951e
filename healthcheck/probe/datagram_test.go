package probe_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

// within bounds a probe over real sockets.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// udpServer answers each datagram with what reply returns, until the test ends.
func udpServer(t testing.TB, host string, reply func([]byte) [][]byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("cannot listen on %s: %v", host, err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			for _, r := range reply(b[:n]) {
				c.WriteTo(r, from)
			}
		}
	}()
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// datagrams is a Dialer to a server in memory, which answers each datagram with what it returns: for tests in a bubble of package synctest,
// where no answer is late.
type datagrams func([]byte) [][]byte

func (d datagrams) DialContext(_ context.Context, network, _ string) (net.Conn, error) {
	if network != "udp" {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	replies := make(chan []byte, 100)
	go func() {
		defer close(replies)
		b := make([]byte, 65536)
		for {
			n, err := there.Read(b)
			if err != nil {
				return
			}
			for _, r := range d(b[:n]) {
				replies <- bytes.Clone(r)
			}
		}
	}()
	go func() {
		defer there.Close()
		for r := range replies {
			_, _ = there.Write(r)
		}
	}()
	return here, nil
}

// closedUDP returns a loopback address on which nobody takes datagrams.
func closedUDP(t testing.TB, host string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("cannot listen on %s: %v", host, err)
	}
	defer c.Close()
	// What is connected to another keeps the port from others, and refuses what they send.
	d, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), 0)), c.LocalAddr().(*net.UDPAddr))
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return netip.MustParseAddrPort(d.LocalAddr().String())
}

func silent([]byte) [][]byte { return nil }

func say(replies ...string) func([]byte) [][]byte {
	return func([]byte) (out [][]byte) {
		for _, r := range replies {
			out = append(out, []byte(r))
		}
		return out
	}
}

func TestUDP(t *testing.T) {
	quick := probe.UDP{Wait: 50 * time.Millisecond}
	expect := probe.UDP{Payload: []byte("ping"), Expect: []byte("pong")}
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			res := quick.Probe(within(t, patience), udpServer(t, host, silent))
			require.Equal(t, healthcheck.AssumedAlive, res.Verdict, "%v", res.Err)
			require.Equal(t, "silence", res.Note)
			require.NoError(t, res.Err)

			slow := probe.UDP{Wait: patience} // what is answered takes no longer, unless the machine is busy
			res = slow.Probe(within(t, patience), udpServer(t, host, say("x")))
			require.Equal(t, healthcheck.Pass, res.Verdict)

			res = slow.Probe(within(t, patience), closedUDP(t, host))
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
			require.EqualError(t, res.Err, "udp: answer: connection refused")

			got := make(chan string, 10)
			res = expect.Probe(within(t, patience), udpServer(t, host, func(b []byte) [][]byte {
				got <- string(b)
				return say("other", "pong!")(b)
			}))
			require.Equal(t, healthcheck.Pass, res.Verdict)
			require.Equal(t, "ping", <-got)

			res = expect.Probe(within(t, 300*time.Millisecond), udpServer(t, host, silent))
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.EqualError(t, res.Err, "udp: answer: timed out without an answer")

			res = expect.Probe(within(t, patience), closedUDP(t, host))
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
		})
	}
	t.Run("verdict before a short deadline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res := probe.UDP{Dialer: datagrams(silent)}.Probe(within(t, 400*time.Millisecond), target)
			require.Equal(t, healthcheck.AssumedAlive, res.Verdict, "%v", res.Err)
		})
	})
	t.Run("what is not expected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := expect
			p.Dialer = datagrams(say("peng"))
			res := p.Probe(within(t, patience), target)
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorContains(t, res.Err, `timed out after ignoring a reply: got "peng", want "pong" in it`)
		})
	})
}

// dnsServer answers by a function of the query's header and question.
func dnsServer(t testing.TB, host string, reply func(m *dnsmessage.Message)) netip.AddrPort {
	return udpServer(t, host, func(b []byte) [][]byte { return [][]byte{dnsAnswer(b, reply)} })
}

func dnsAnswer(query []byte, reply func(m *dnsmessage.Message)) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil {
		return nil
	}
	m.Response = true
	reply(&m)
	b, _ := m.Pack()
	return b
}

func addRecord(m *dnsmessage.Message, body dnsmessage.ResourceBody) {
	q := m.Questions[0]
	m.Answers = append(m.Answers, dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}, Body: body,
	})
}

var soa = &dnsmessage.SOAResource{NS: dnsmessage.MustNewName("ns."), MBox: dnsmessage.MustNewName("m.")}

// zoneServer is a well-behaved authoritative server of example.jp.
func zoneServer(m *dnsmessage.Message) {
	m.Authoritative = true
	switch m.Questions[0].Type {
	case dnsmessage.TypeA:
		addRecord(m, &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}})
	case dnsmessage.TypeAAAA:
		addRecord(m, &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2001:db8::7").As16()})
	case dnsmessage.TypeSOA:
		addRecord(m, soa)
	default:
		m.RCode = dnsmessage.RCodeRefused
	}
}

func TestDNS(t *testing.T) {
	name, zone := probe.DNS{Name: "example.jp"}, probe.DNS{Zone: "example.jp."}
	both := probe.DNS{Name: "www.example.jp", Zone: "example.jp"}
	rcode := func(c dnsmessage.RCode) func(*dnsmessage.Message) {
		return func(m *dnsmessage.Message) { m.RCode = c }
	}
	empty := func(*dnsmessage.Message) {}
	for _, row := range []struct {
		name   string
		prober probe.DNS
		reply  func(*dnsmessage.Message)
		err    string // contained in the error; empty: passes
	}{
		{"address", name, zoneServer, ""},
		{"final dot", probe.DNS{Name: "example.jp."}, zoneServer, ""},
		{"IPv6 address", probe.DNS{Name: "example.jp", IPv6: true}, zoneServer, ""},
		{"zone", zone, zoneServer, ""},
		{"both", both, zoneServer, ""},
		{"life", probe.DNS{}, zoneServer, ""},
		{"life, servfail", probe.DNS{}, rcode(dnsmessage.RCodeServerFailure), "dns: root: got \"SERVFAIL\""},
		{"expected address", probe.DNS{Name: "a", Expect: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}, zoneServer, ""},
		{"other address", probe.DNS{Name: "a", Expect: []netip.Addr{netip.MustParseAddr("192.0.2.8")}}, zoneServer, "got \"[192.0.2.7]\", want one of [192.0.2.8]"},
		{"no address", name, empty, `dns: address of example.jp: got "no address", want an address`},
		{"address passes, zone fails", both, func(m *dnsmessage.Message) {
			if zoneServer(m); m.Questions[0].Type == dnsmessage.TypeSOA {
				m.Answers = nil
			}
		}, `dns: zone example.jp: got "no SOA record"`},
		{"no authority", zone, func(m *dnsmessage.Message) { zoneServer(m); m.Authoritative = false }, "AA=0"},
		{"NXDOMAIN", name, rcode(dnsmessage.RCodeNameError), "NXDOMAIN"},
		{"SERVFAIL", name, rcode(dnsmessage.RCodeServerFailure), `got "SERVFAIL", want an accepted response code`},
		{"REFUSED", name, rcode(dnsmessage.RCodeRefused), "REFUSED"},
		{"NXDOMAIN with life", probe.DNS{Name: "a", Life: true}, rcode(dnsmessage.RCodeNameError), ""},
		{"no address with life", probe.DNS{Name: "a", Life: true}, empty, ""},
		{"SERVFAIL with life", probe.DNS{Name: "a", Life: true}, rcode(dnsmessage.RCodeServerFailure), "SERVFAIL"},
		{"SERVFAIL accepted", probe.DNS{Name: "a", RCodes: []uint8{0, 2}}, rcode(dnsmessage.RCodeServerFailure), ""},
		{"NOERROR not accepted", probe.DNS{Name: "a", RCodes: []uint8{5}}, zoneServer, "NOERROR"},
		{"wrong id", name, func(m *dnsmessage.Message) { zoneServer(m); m.ID++ }, "timed out after ignoring a reply: id"},
		{"QR=0", name, func(m *dnsmessage.Message) { zoneServer(m); m.Response = false }, "a query (QR=0)"},
		{"other question", name, func(m *dnsmessage.Message) {
			zoneServer(m)
			m.Questions[0].Name = dnsmessage.MustNewName("example.com.")
		}, "another question"},
		{"no question", name, func(m *dnsmessage.Message) { m.Questions = nil }, "another question"},
		{"FORMERR without question", name, func(m *dnsmessage.Message) { m.Questions = nil; m.RCode = dnsmessage.RCodeFormatError }, "FORMERR"},
		{"question in upper case", name, func(m *dnsmessage.Message) {
			zoneServer(m)
			m.Questions[0].Name = dnsmessage.MustNewName("EXAMPLE.JP.")
		}, ""},
		{"truncated, no TCP", name, func(m *dnsmessage.Message) { m.Truncated = true }, "truncated, then over TCP: connection refused"},
		{"truncated, life", probe.DNS{Name: "a", Life: true}, func(m *dnsmessage.Message) { m.Truncated = true }, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			check := func(t *testing.T, res healthcheck.Result) {
				if row.err == "" {
					require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
				} else {
					require.Equal(t, healthcheck.Fail, res.Verdict)
					require.ErrorContains(t, res.Err, row.err)
				}
			}
			if strings.Contains(row.err, "ignoring") || strings.Contains(row.err, "QR=0") || strings.Contains(row.err, "another") { // until the deadline
				synctest.Test(t, func(t *testing.T) {
					p := row.prober
					p.Dialer = datagrams(func(b []byte) [][]byte { return [][]byte{dnsAnswer(b, row.reply)} })
					check(t, p.Probe(within(t, patience), target))
				})
				return
			}
			for _, host := range loopbacks {
				check(t, row.prober.Probe(within(t, patience), dnsServer(t, host, row.reply)))
			}
		})
	}
}

func TestDNSOddReplies(t *testing.T) {
	t.Parallel()
	p := probe.DNS{Name: "example.jp", Retries: -1}
	for n := range 12 {
		res := p.Probe(within(t, patience), udpServer(t, "127.0.0.1", func(b []byte) [][]byte { return [][]byte{b[:n]} }))
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorContains(t, res.Err, "want a reply of at least 12 bytes")
	}
	t.Run("cut in the middle", func(t *testing.T) {
		res := p.Probe(within(t, patience), udpServer(t, "127.0.0.1", func(b []byte) [][]byte {
			a := dnsAnswer(b, zoneServer)
			return [][]byte{a[:len(a)-3]}
		}))
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.ErrorContains(t, res.Err, "malformed reply")
	})
	t.Run("bad reply, then a good one", func(t *testing.T) {
		res := p.Probe(within(t, patience), udpServer(t, "127.0.0.1", func(b []byte) [][]byte {
			return [][]byte{
				dnsAnswer(b, func(m *dnsmessage.Message) { m.ID ^= 0xffff; m.RCode = dnsmessage.RCodeServerFailure }),
				b,
				dnsAnswer(b, zoneServer),
			}
		}))
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
	})
	t.Run("answer to the third try", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var tries atomic.Int32
			res := probe.DNS{Name: "a", Dialer: datagrams(func(b []byte) [][]byte {
				if tries.Add(1) < 3 {
					return nil
				}
				return [][]byte{dnsAnswer(b, zoneServer)}
			})}.Probe(within(t, 900*time.Millisecond), target)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.EqualValues(t, 3, tries.Load())
		})
	})
}

// TestDNSNames shows what of a name is sent.
func TestDNSNames(t *testing.T) {
	t.Parallel()
	ask := func(name string) ([]byte, healthcheck.Result) {
		sent := make(chan []byte, 10)
		res := probe.DNS{Name: name}.Probe(within(t, patience), udpServer(t, "127.0.0.1", func(b []byte) [][]byte {
			sent <- bytes.Clone(b)
			return [][]byte{dnsAnswer(b, zoneServer)}
		}))
		select {
		case b := <-sent:
			return b, res
		default:
			return nil, res
		}
	}
	for name, want := range map[string]string{
		"example.jp.": "\x07example\x02jp\x00",
		"example.jp":  "\x07example\x02jp\x00",
		".":           "\x00",
	} {
		sent, res := ask(name)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.Equal(t, want, string(sent[12:len(sent)-4]), name)
		require.Zero(t, sent[2]&1, "recursion is not desired")
	}
	for _, name := range []string{"a..b", "..", strings.Repeat("a", 64), strings.Repeat("a.", 127) + "aa"} {
		_, res := ask(name)
		require.Equal(t, healthcheck.Inconclusive, res.Verdict)
		require.ErrorContains(t, res.Err, "DNS.Name")
	}
}

// TestDNSOverTCP has a server that truncates every datagram, with TCP on the same port.
func TestDNSOverTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Skip(err)
	}
	defer c.Close()
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo(dnsAnswer(b[:n], func(m *dnsmessage.Message) { m.Truncated = true }), from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 512)
			n, _ := c.Read(b)
			a := dnsAnswer(b[2:n], zoneServer)
			for _, x := range append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...) {
				c.Write([]byte{x}) // one byte at a time
			}
			c.Read(b)
			c.Close()
		}
	}()
	addr := netip.MustParseAddrPort(l.Addr().String())
	res := probe.DNS{Name: "example.jp", Zone: "example.jp"}.Probe(within(t, patience), addr)
	require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
	require.Contains(t, res.Note, "over TCP")
	res = probe.DNS{Name: "example.jp", TCP: true}.Probe(within(t, patience), addr)
	require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
}

func TestTFTP(t *testing.T) {
	p := probe.TFTP{File: "boot.img"}
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			// The reply comes from another port, as real servers' do.
			ended := make(chan []byte, 1)
			data := tftpServer(t, host, "\x00\x03\x00\x01data", ended)
			res := p.Probe(within(t, patience), data)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.Equal(t, "\x00\x05\x00\x00health check\x00", string(<-ended), "the transfer is ended")

			res = p.Probe(within(t, patience), tftpServer(t, host, "\x00\x05\x00\x01File not found\x00", nil))
			require.Equal(t, healthcheck.Pass, res.Verdict)
			require.Equal(t, "error 1 (File not found) counts as alive", res.Note)

			res = p.Probe(within(t, patience), tftpServer(t, host, "\x00\x09\x00\x01", nil))
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorContains(t, res.Err, `tftp: read request: got "opcode 9", want DATA, ERROR or OACK`)

			res = p.Probe(within(t, patience), tftpServer(t, host, "\x00\x03", nil))
			require.ErrorContains(t, res.Err, "at least 4 bytes")

			res = p.Probe(within(t, 300*time.Millisecond), udpServer(t, host, silent))
			require.Equal(t, healthcheck.Fail, res.Verdict)

			res = p.Probe(within(t, patience), closedUDP(t, host))
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
		})
	}
	res := probe.TFTP{}.Probe(t.Context(), target)
	require.Equal(t, healthcheck.Inconclusive, res.Verdict)
	require.ErrorContains(t, res.Err, "TFTP.File")
}

// tftpServer answers from a port of its own.
func tftpServer(t testing.TB, host, reply string, next chan<- []byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("cannot listen on %s: %v", host, err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 600)
		for {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			d, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
			if err != nil {
				return
			}
			d.WriteTo([]byte(reply), from)
			if next != nil {
				n, _, _ := d.ReadFrom(b)
				next <- bytes.Clone(b[:n])
			}
			d.Close()
		}
	}()
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// unsent is a Dialer whose connections have no time to send, but for those numbered.
type unsent struct {
	n    *int
	sent int
}

func (d unsent) DialContext(context.Context, string, string) (net.Conn, error) {
	here, _ := net.Pipe()
	return unsentConn{here, d}, nil
}

type unsentConn struct {
	net.Conn
	unsent
}

func (c unsentConn) Write(b []byte) (int, error) {
	if *c.n++; *c.n == c.sent {
		return len(b), nil
	}
	return 0, &net.OpError{Op: "write", Net: "udp", Err: os.ErrDeadlineExceeded}
}

// TestUDPUnsent: who was not asked is not silent.
func TestUDPUnsent(t *testing.T) {
	p := probe.UDP{Dialer: unsent{new(int), 0}, Wait: time.Millisecond}
	res := p.Probe(within(t, time.Minute), target)
	require.Equal(t, healthcheck.Inconclusive, res.Verdict)
	require.EqualError(t, res.Err, "udp: answer: local: no time to send a datagram")
	for _, sent := range []int{1, 2} { // one is enough
		p.Dialer = unsent{new(int), sent}
		require.Equal(t, healthcheck.AssumedAlive, p.Probe(within(t, time.Minute), target).Verdict)
	}
}
