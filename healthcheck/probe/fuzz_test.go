package probe

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http2"

	"github.com/lbprim/lbprim/healthcheck"
)

// parsers are the readers of replies that come over a stream. What they return is to
// be the same however the reply is cut.
var parsers = []struct {
	name  string
	parse func(r *reader) error
	seeds []string
}{
	{"ftp", func(r *reader) error { _, err := readReply(r, false, "220"); return err },
		[]string{"220 x\r\n", "220-a\r\n221 b\r\n220 c\r\n", "421 no\r\n", "22"}},
	{"smtp", func(r *reader) error { _, err := readReply(r, true, "220", "250"); return err },
		[]string{"250-a\r\n250 b\r\n", "220-a\r\n554 b\r\n"}},
	{"pop3", wantOK, []string{"+OK x\r\n", "-ERR\r\n"}},
	{"imap", readIMAPGreeting, []string{"* OK x\r\n", "* PREAUTH\n", "* BYE\r\n"}},
	{"imap tagged", func(r *reader) error { return readIMAPTagged(r, "A OK") }, []string{"* X\r\na OK y\r\n"}},
	{"http", func(r *reader) error { _, err := readHTTPStatus(r, "HTTP/"); return err },
		[]string{"HTTP/1.1 103 x\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", "HTTP/1.0 401\n\n"}},
	{"http body", parseWholeHTTP,
		[]string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a\r\nabc\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\n\r\nabc"}},
	{"rtsp", func(r *reader) error { _, err := readHTTPStatus(r, "RTSP/"); return err }, []string{"RTSP/1.0 200 OK\r\nCSeq: 1\r\n\r\n"}},
	{"ldap", func(r *reader) error { _, err := readLDAP(r, 1, ldapBindResponse); return err },
		[]string{"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00", "\x30\x84\x00\x00\x00\x10\x02\x01\x01\x61\x84\x00\x00\x00\x07\x0a\x01\x00\x04\x00\x04\x00", "\x30\x06\x02\x01\x01\x61\xff\x0a\x01"}},
	{"mms", readMMS, []string{"\x01\x00\x00\x00\xce\xfa\x0b\xb0\x20\x00\x00\x00MMS \x06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00"}},
	{"pnm", readPNM, []string{"PNA\x00", "r\x00\x00PNA"}},
	{"tls", func(r *reader) error { _, err := readTLSReply(r); return err }, []string{"\x15\x03\x01\x00\x02\x02\x28", "\x16\x03\x03\x00\x04\x02\x00\x00\x00"}},
	{"mysql", func(r *reader) error { _, err := readMySQLGreeting(r); return err }, []string{"\x08\x00\x00\x00\x0a8.0.36\x00", "\x05\x00\x00\x00\xff\x69\x04no"}},
	{"postgres", func(r *reader) error { _, err := Postgres{ErrorPasses: true}.readReply(r); return err },
		[]string{"R\x00\x00\x00\x08\x00\x00\x00\x00", "E\x00\x00\x00\x0dC28000\x00\x00\x00"}},
	{"grpc", parseGRPC, []string{"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88\x00\x00\x07\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x02\x08\x01"}},
	{"agent", func(r *reader) error {
		l, err := readAgentLine(r)
		if err == nil {
			_, err = healthcheck.ParseAgent(string(l))
		}
		return err
	}, []string{"75%,maxconn:30,maint,down\n", "up"}},
	{"nntp", readNNTPGreeting, []string{"200 posting\r\n", "201\n", "400 gone\r\n"}},
	{"telnet", readTelnet, []string{"\xff\xfd\x18", "login: "}},
	{"redis", func(r *reader) error { return readRedis(r, "+PONG") }, []string{"+PONG\r\n", "-LOADING\r\n"}},
	{"redis login", func(r *reader) error {
		if err := readRedis(r, "+OK"); err != nil {
			return err
		}
		return readRedis(r, "+PONG")
	}, []string{"+OK\r\n+PONG\r\n", "-WRONGPASS\r\n"}},
	{"mysql login", func(r *reader) error {
		if _, err := readMySQLGreeting(r); err != nil {
			return err
		}
		return readMySQLLogin(r, func([]byte) error { return nil })
	}, []string{"\x08\x00\x00\x00\x0a8.0.36\x00\x07\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00", "\x08\x00\x00\x00\x0a8.0.36\x00\x02\x00\x00\x02\xfe\x00\x02\x00\x00\x04\x01\x04\x01\x00\x00\x06\x00"}},
	{"smtp starttls", func(r *reader) error {
		if _, err := readReply(r, true, "220"); err != nil {
			return err
		}
		if _, err := readReply(r, true, "250"); err != nil {
			return err
		}
		_, err := readReply(r, false, "220")
		return err
	}, []string{"220 a\r\n250-b\r\n250 STARTTLS\r\n220 go\r\n", "220 a\r\n250 b\r\n454 no\r\n"}},
	{"ldap starttls", func(r *reader) error { _, err := readLDAP(r, 1, ldapExtendedResponse); return err },
		[]string{"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00"}},
	{"dns", func(r *reader) error { _, err := readDNS(r, 7, fuzzQuestion()); return err },
		[]string{"\x00\x1c\x00\x07\x84\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x02jp\x00\x00\x01\x00\x01", "\x00\x02ab", "\xff\xff"}},
	{"script match", func(r *reader) error { return Step{Match: regexp.MustCompile(`(?m)^25\d ok`)}.expect(r) }, []string{"220 a\n250 ok\n", "250 no\n", ""}},
	{"script", func(r *reader) error { return Step{Expect: []byte("ok"), Line: true}.expect(r) }, []string{"ok\n", "no\n"}},
	{"script not", func(r *reader) error { return Step{Expect: []byte("ok"), Not: true}.expect(r) }, []string{"ok\n", "no\n", ""}},
}

func fuzzQuestion() dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName("example.jp."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
}

func parseWholeHTTP(r *reader) error {
	st, err := readHTTPStatus(r, "HTTP/")
	if err != nil {
		return err
	}
	l, err := healthcheck.NewMatchList(healthcheck.Fail, healthcheck.MatchRule{Text: "abc", Verdict: healthcheck.Pass})
	if err != nil {
		return err
	}
	scan := l.Scan()
	if err := readHTTPBody(r, st, scan); err != nil {
		return err
	}
	if v, _ := scan.Finish(); v != healthcheck.Pass {
		return healthcheck.ErrMismatch
	}
	return nil
}

func parseGRPC(r *reader) error {
	c := &grpcCall{fr: http2.NewFramer(io.Discard, r)}
	if err := c.send(io.Discard, nil, nil); err != nil {
		return err
	}
	if err := c.receive(); err != nil {
		return err
	}
	return c.judge()
}

// parsersOf says which parsers read the replies of each method: those of parsers, or of FuzzDatagrams and FuzzHeads.
var parsersOf = map[healthcheck.Method]string{
	healthcheck.ICMP: "FuzzDatagrams", healthcheck.TCP: "FuzzDatagrams", healthcheck.RADIUS: "FuzzDatagrams", healthcheck.TFTP: "FuzzDatagrams",
	healthcheck.UDP:     "", // whether it contains some text
	healthcheck.Command: "", // its exit status
	healthcheck.FTP:     "ftp", healthcheck.SMTP: "smtp", healthcheck.NNTP: "nntp", healthcheck.POP3: "pop3", healthcheck.IMAP4: "imap", healthcheck.TELNET: "telnet",
	healthcheck.HTTP: "http", healthcheck.SSL: "tls", healthcheck.SSLComplete: "http body", healthcheck.LDAP: "ldap", healthcheck.RTSP: "rtsp", healthcheck.MMS: "mms",
	healthcheck.PNM: "pnm", healthcheck.DNS: "dns", healthcheck.GRPC: "grpc", healthcheck.Redis: "redis", healthcheck.MySQL: "mysql login", healthcheck.PostgreSQL: "postgres",
	healthcheck.Script: "script", healthcheck.Agent: "agent",
}

// within are parsers that others call.
var within = map[string]bool{"readTLV": true, "readChunks": true, "readHTTPHead": true, "parseStatusLine": true, "readMySQLPacket": true}

// TestEveryParserIsFuzzed leaves out no method, and no function that reads a reply.
func TestEveryParserIsFuzzed(t *testing.T) {
	names := map[string]bool{"": true, "FuzzDatagrams": true}
	for _, p := range parsers {
		names[p.name] = true
	}
	for m := healthcheck.ICMP; ; m++ {
		if _, err := m.MarshalText(); err != nil {
			break
		}
		name, ok := parsersOf[m]
		require.True(t, ok && names[name], "%v: %q", m, name)
	}
	fuzz, err := os.ReadFile("fuzz_test.go")
	require.NoError(t, err)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	n := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, f := range regexp.MustCompile(`(?m)^func ((?:parse|read)[A-Z]\w*)\(`).FindAllSubmatch(b, -1) {
			n++
			called := regexp.MustCompile(`[ ={,(]` + string(f[1]) + `[(,]`).Match(fuzz)
			require.True(t, called != within[string(f[1])], "%s of %s is in no fuzz target, or needs no excuse", f[1], name)
		}
	}
	require.Greater(t, n, 15)
}

// FuzzStreams shows that no parser of stream replies panics, reads past the bound, or
// lets its verdict depend on the pieces in which the reply arrives.
func FuzzStreams(f *testing.F) {
	for i, p := range parsers {
		for _, s := range p.seeds {
			f.Add(uint8(i), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, reply []byte) {
		p := parsers[int(which)%len(parsers)]
		const limit = 8 << 10
		counted := &counter{r: bytes.NewReader(reply)}
		whole := p.parse(newReader(counted, limit))
		if counted.n > limit+1024 {
			t.Errorf("%s: read %d bytes, bound %d", p.name, counted.n, limit)
		}
		byOne := p.parse(newReader(iotest.OneByteReader(bytes.NewReader(reply)), limit))
		if (whole == nil) != (byOne == nil) {
			t.Errorf("%s: %q: in one piece %v, one byte at a time %v", p.name, reply, whole, byOne)
		}
		if whole != nil && whole.Error() == "" {
			t.Errorf("%s: an error without text", p.name)
		}
	})
}

type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}

// FuzzDatagrams does the same for replies that come in one datagram.
func FuzzDatagrams(f *testing.F) {
	q := fuzzQuestion()
	query, err := dnsQuery(7, false, q)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(query)
	answer := bytes.Clone(query)
	answer[2] |= 0x84
	f.Add(answer)
	answer = append(bytes.Clone(answer), "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x01"...)
	answer[7] = 1
	f.Add(answer)
	var auth [16]byte
	f.Add(radiusRequest(radiusAccessAccept, 7, auth, "k", "u", "p", "n"))
	f.Add([]byte("\x00\x05\x00\x01File not found\x00"))
	src, dst := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2")
	f.Add(appendSegment(nil, dst, src, 1, tcpSYN|tcpACK))
	e := newEcho(true, 32, false)
	req, err := e.request()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(req)
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseDNS(b, 7, q); err == nil && len(b) < dnsHeader {
			t.Error(r)
		}
		if code, err := parseRADIUS(b, 7, auth, "k", false); err == nil && len(b) < radiusHeader {
			t.Error(code)
		}
		_, _ = parseTFTP(b)
		if open, refused := judgeSegment(b, src, dst, 7); open && refused {
			t.Error("open and refused")
		}
		_ = e.matches(b)
		_, _ = parseLDAP(b, 1, ldapBindResponse)
		_, _ = parseMMS(b)
		_, _ = parseHealthResponse(b)
		_ = mysqlError(b)
		_, _ = Postgres{}.judgeError(b)
		_, _, _ = contentLength([]string{string(b)})
		_, _ = dnsName(string(b))
	})
}

// FuzzHeads shows that answers of HTTP lead to the same end however they are read: by one
// that waits for the rest, and piece by piece.
func FuzzHeads(f *testing.F) {
	for _, p := range parsers {
		for _, s := range p.seeds {
			f.Add([]byte(s), uint8(3))
		}
	}
	f.Add([]byte("HTTP/1.1 103 x\n\nHTTP/1.1 101 y\n\n"), uint8(1))
	f.Add(bytes.Repeat([]byte("HTTP/1.1 100 x\r\n\r\n"), maxInterim+1), uint8(7))
	f.Add(append([]byte("HTTP/1.1 200 x\r\n"), bytes.Repeat([]byte("a"), 5000)...), uint8(0))
	f.Fuzz(func(t *testing.T, reply []byte, piece uint8) {
		const limit = 4 << 10
		st, want := readHTTPStatus(newReader(bytes.NewReader(reply), limit), "HTTP/")
		var h headScan
		h.reset(1)
		_, _ = h.feed([]byte("left over"))
		h.reset(limit)
		var got error
		done := false
		for rest := reply; !done && got == nil; {
			if len(rest) == 0 {
				got = h.cut(io.EOF)
				break
			}
			n := min(len(rest), int(piece)+1)
			done, got = h.feed(rest[:n])
			rest = rest[n:]
		}
		if (want == nil) != (got == nil) || want != nil && want.Error() != got.Error() {
			t.Fatalf("%q in pieces of %d: %v, want %v", reply, int(piece)+1, got, want)
		}
		if want == nil && (h.code != st.code || string(h.status) != st.line) {
			t.Fatalf("%q: %d %q, want %d %q", reply, h.code, h.status, st.code, st.line)
		}
	})
}
