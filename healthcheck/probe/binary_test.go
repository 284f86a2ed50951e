package probe_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

// after is a server that takes n bytes, answers, and listens on.
func after(n int, reply string) func(*peer) {
	return func(p *peer) {
		p.take(n)
		p.say(reply)
		p.drain()
	}
}

func afterAndClose(n int, reply string) func(*peer) {
	return func(p *peer) {
		p.take(n)
		p.say(reply)
	}
}

func unhex(s string) string {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return string(b)
}

func with[P healthcheck.Prober](set func(*P, memory), p P) func(memory) healthcheck.Prober {
	return func(d memory) healthcheck.Prober {
		q := p
		set(&q, d)
		return q
	}
}

func ldapWith(p probe.LDAP) func(memory) healthcheck.Prober {
	return with(func(p *probe.LDAP, d memory) { p.Dialer = d }, p)
}

func TestLDAP(t *testing.T) {
	zero, codes := ldapWith(probe.LDAP{}), ldapWith(probe.LDAP{ResultCodes: []uint8{0, 49}})
	const bind = 14 // bytes of the request
	testConversations(t, []conversation{
		{name: "success", prober: zero, serve: after(bind, unhex("300c02010161070a010004000400")), want: healthcheck.Pass},
		{name: "four-byte lengths", prober: zero, serve: after(bind, unhex("3084000000100201016184000000070a010004000400")), want: healthcheck.Pass},
		{name: "no BindResponse", prober: zero, serve: after(bind, unhex("300c02010160070a010004000400")), want: healthcheck.Fail, err: "want an operation with tag 0x61"},
		{name: "result 1", prober: zero, serve: after(bind, unhex("300c02010161070a010104000400")), want: healthcheck.Fail, err: `ldap: bind: got "result code 1", want result code in [0]`},
		{name: "invalid credentials", prober: zero, serve: after(bind, unhex("300e02010161090a01310400040268 69")), want: healthcheck.Fail, err: `"result code 49, hi"`},
		{name: "invalid credentials accepted", prober: codes, serve: after(bind, unhex("300c02010161070a013104000400")), want: healthcheck.Pass},
		{name: "forged inner length", prober: zero, serve: after(bind, unhex("300602010161ff0a01")), want: healthcheck.Fail, err: "want a complete operation"},
		{name: "forged outer length", prober: zero, serve: after(bind, unhex("30847fffffff0201016107")), want: healthcheck.Fail, err: "length 2147483647"},
		{name: "outer length past the end", prober: zero, serve: afterAndClose(bind, unhex("301002010161070a010004000400")), want: healthcheck.Fail, err: "message too short: connection closed after"},
		{name: "indefinite length", prober: zero, serve: after(bind, unhex("3080020101")), want: healthcheck.Fail, err: "a length of at most four bytes"},
		{name: "wrong id", prober: zero, serve: after(bind, unhex("300c02010261070a010004000400")), want: healthcheck.Fail, err: "want message id 1"},
		{name: "notice of disconnection", prober: zero, serve: after(bind, unhex("300c02010078070a013404000400")), want: healthcheck.Fail, err: "message id 1"},
		{name: "closed at once", prober: zero, serve: afterAndClose(bind, ""), want: healthcheck.Fail, err: "connection closed without an answer"},
		{name: "one byte, closed", prober: zero, serve: afterAndClose(bind, "0"), want: healthcheck.Fail, err: "too short"},
		{name: "text", prober: zero, serve: after(bind, "220 hi\r\n"), want: healthcheck.Fail, err: `got "2", want a message that begins with 0x30`},
		{name: "silence", prober: zero, serve: after(bind, ""), want: healthcheck.Fail, err: "ldap: bind: timed out"},
	})
}

func TestLDAPVectors(t *testing.T) {
	b, err := os.ReadFile(testenv.SharedFile(t, "vectors/vectors.json"))
	require.NoError(t, err)
	var file struct {
		LDAP struct {
			Cases []struct{ Hex, Want string }
		} `json:"ldap_bind_response"`
		SMTP struct {
			Cases []struct {
				Server []string
				Want   string
			}
		}
	}
	require.NoError(t, json.Unmarshal(b, &file))
	require.NotEmpty(t, file.LDAP.Cases)
	require.NotEmpty(t, file.SMTP.Cases)
	for _, c := range file.LDAP.Cases {
		for _, pieces := range []int{0, 1, 7} {
			synctest.Test(t, func(t *testing.T) {
				res := run(probe.LDAP{Dialer: memory{serve: after(14, unhex(c.Hex)), pieces: pieces}})
				require.Equal(t, strings.HasPrefix(c.Want, "pass"), res.Verdict.OK(), "%s: %v", c.Hex, res.Err)
			})
		}
	}
	for _, c := range file.SMTP.Cases {
		for _, pieces := range []int{0, 1, 7} {
			synctest.Test(t, func(t *testing.T) {
				serve := func(p *peer) {
					for i, line := range c.Server {
						// A server that says several lines of one reply does not wait.
						if i > 0 && !strings.HasPrefix(c.Server[i-1][3:], "-") {
							p.hear()
						}
						p.say(line + "\r\n")
					}
					p.drain()
				}
				res := run(probe.SMTP{Dialer: memory{serve: serve, pieces: pieces}, Hello: "x"})
				require.Equal(t, strings.HasPrefix(c.Want, "pass"), res.Verdict.OK(), "%q: %v", c.Server, res.Err)
			})
		}
	}
}

func TestTLSHello(t *testing.T) {
	hello := with(func(p *probe.TLSHello, d memory) { p.Dialer = d }, probe.TLSHello{ServerName: "www.example.com"})
	serverHello := unhex("16 0303 0004 02000000")
	// The server takes the record header first, and then as many bytes as it says.
	reply := func(r string) func(*peer) {
		return func(p *peer) {
			if h := p.take(5); len(h) == 5 {
				p.take(int(h[3])<<8 | int(h[4]))
				p.say(r)
				p.drain()
			}
		}
	}
	testConversations(t, []conversation{
		{name: "ServerHello", prober: hello, serve: reply(serverHello), want: healthcheck.Pass},
		{name: "alert", prober: hello, serve: reply(unhex("15 0301 0002 0228")), want: healthcheck.Pass, note: "handshake failure"},
		{name: "other message", prober: hello, serve: reply(unhex("16 0301 0004 01000000")), want: healthcheck.Fail, err: "want a ServerHello"},
		{name: "http", prober: hello, serve: reply("HTTP/1.1 400 Bad Request\r\n\r\n"), want: healthcheck.Fail, err: `tls hello: reply: got "H", want a TLS record`},
		{name: "record of SSL 2", prober: hello, serve: reply(unhex("16 0200 0004 01000000")), want: healthcheck.Fail, err: "want a TLS record"},
		{name: "empty record", prober: hello, serve: reply(unhex("16 0303 0000")), want: healthcheck.Fail, err: "want a TLS record"},
		{name: "cut", prober: hello, serve: reply(unhex("16 0303")), want: healthcheck.Fail, err: `timed out after "\x16\x03\x03"`},
	})
}

func TestMMS(t *testing.T) {
	mms := with(func(p *probe.MMS, d memory) { p.Dialer = d }, probe.MMS{})
	header := func(length string) string {
		return unhex("01000000 cefa0bb0 " + length + " 4d4d5320 07000000 0000 0000 0000000000000000")
	}
	ok := unhex("03000000 01000400 00000000 f0f0f0ef 0b000400 1c000300")
	reply := func(r string) func(*peer) { return after(40, r) }
	testConversations(t, []conversation{
		{name: "connected", prober: mms, serve: reply(header("28000000") + ok), want: healthcheck.Pass},
		{name: "ping first", prober: mms, serve: reply(header("20000000") + unhex("02000000 1b000400 0000000000000000") + header("28000000") + ok), want: healthcheck.Pass},
		{name: "ping in the same packet", prober: mms, serve: reply(header("38000000") + unhex("02000000 1b000400 0000000000000000") + ok), want: healthcheck.Pass},
		{name: "refused", prober: mms, serve: reply(header("28000000") + unhex("03000000 01000400 05000780 f0f0f0ef 0b000400 1c000300")), want: healthcheck.Fail, err: "hr 0x80070005"},
		{name: "other message", prober: mms, serve: reply(header("28000000") + unhex("03000000 02000400 00000000 f0f0f0ef 0b000400 1c000300")), want: healthcheck.Fail, err: "message 0x00040002"},
		{name: "wrong seal", prober: mms, serve: reply(strings.Replace(header("28000000"), "MMS ", "MMSX", 1) + ok), want: healthcheck.Fail, err: "seal"},
		{name: "message past the packet", prober: mms, serve: reply(header("28000000") + unhex("13000000 01000400 00000000 f0f0f0ef 0b000400 1c000300")), want: healthcheck.Fail, err: "a message of 152 bytes"},
		{name: "endless packet", prober: mms, serve: reply(header("ffffff7f") + ok), want: healthcheck.Fail, err: "message length"},
		{name: "short", prober: mms, serve: reply(header("28000000") + ok[:9]), want: healthcheck.Fail, err: "timed out after"},
		{name: "pings for ever", prober: mms, serve: reply(strings.Repeat(header("20000000")+unhex("02000000 1b000400 0000000000000000"), 20)), want: healthcheck.Fail, err: "pings only"},
	})
}

func TestPNM(t *testing.T) {
	pnm := with(func(p *probe.PNM, d memory) { p.Dialer = d }, probe.PNM{})
	reply := func(r string) func(*peer) { return after(30, r) }
	testConversations(t, []conversation{
		{name: "PNA", prober: pnm, serve: reply("PNA\x00\x0a"), want: healthcheck.Pass},
		{name: "after a prefix", prober: pnm, serve: reply("r\x00\x01PNA\x00"), want: healthcheck.Pass},
		{name: "PPNA", prober: pnm, serve: reply("PPNA"), want: healthcheck.Pass},
		{name: "never", prober: pnm, serve: reply(strings.Repeat("PN", 4000)), want: healthcheck.Fail, err: `"PNA" in the first 4096 bytes`},
		{name: "closed", prober: pnm, serve: afterAndClose(30, "PN"), want: healthcheck.Fail, err: `pnm: reply: connection closed after "PN"`},
	})
}

func TestRedis(t *testing.T) {
	zero := with(func(p *probe.Redis, d memory) { p.Dialer = d }, probe.Redis{})
	auth := with(func(p *probe.Redis, d memory) { p.Dialer = d }, probe.Redis{User: "u", Password: "secret"})
	const ping = "*1\r\n$4\r\nPING\r\n"
	login := func(first, second string) func(*peer) {
		return func(p *peer) {
			p.take(len("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$6\r\nsecret\r\n"))
			p.say(first)
			p.take(len(ping))
			p.say(second)
			p.drain()
		}
	}
	testConversations(t, []conversation{
		{name: "pong", prober: zero, serve: after(len(ping), "+PONG\r\n"), want: healthcheck.Pass},
		{name: "loading", prober: zero, serve: after(len(ping), "-LOADING Redis is loading\r\n"), want: healthcheck.Fail, err: `redis: PING: got "-LOADING Redis is loading", want +PONG`},
		{name: "login", prober: auth, serve: login("+OK\r\n", "+PONG\r\n"), want: healthcheck.Pass},
		{name: "wrong password", prober: auth, serve: login("-WRONGPASS no\r\n", ""), want: healthcheck.Fail, err: `redis: AUTH: got "-WRONGPASS no", want +OK`},
		{name: "cut", prober: zero, serve: after(len(ping), "+PON"), want: healthcheck.Fail, err: `timed out after "+PON"`},
	})
}

func TestMySQL(t *testing.T) {
	zero := with(func(p *probe.MySQL, d memory) { p.Dialer = d }, probe.MySQL{})
	user := with(func(p *probe.MySQL, d memory) { p.Dialer = d }, probe.MySQL{User: "check"})
	greeting := unhex("0c000000 0a") + "8.0.36\x00" + "abcd"
	hostBlocked := "\x1d\x00\x00\x00\xff\x69\x04Host 'x' is blocked, sorry"
	login := func(replies ...string) func(*peer) {
		return func(p *peer) {
			p.say(greeting)
			for _, r := range replies {
				if h := p.take(4); len(h) == 4 {
					p.take(int(h[0]))
					p.say(r)
				}
			}
			p.drain()
		}
	}
	testConversations(t, []conversation{
		{name: "greeting", prober: zero, serve: greet(greeting), want: healthcheck.Pass, note: "8.0.36"},
		{name: "blocked", prober: zero, serve: greet(hostBlocked), want: healthcheck.Fail, err: "error 1129: Host 'x' is blocked"},
		{name: "old protocol", prober: zero, serve: greet(unhex("03000000 090000")), want: healthcheck.Fail, err: "protocol version 10"},
		{name: "empty", prober: zero, serve: greetAndClose(""), want: healthcheck.Fail, err: "mysql: greeting: message too short: connection closed"},
		{name: "huge", prober: zero, serve: greet(unhex("ffffff00 0a")), want: healthcheck.Fail, err: "a packet of 1 to"},
		{name: "text", prober: zero, serve: greet("SSH-2.0-OpenSSH\r\n"), want: healthcheck.Fail, err: "a packet of 1 to"},
		{name: "cut", prober: zero, serve: greet(greeting[:8]), want: healthcheck.Fail, err: "timed out after"},
		{name: "login", prober: user, serve: login(unhex("07000002 00000002000000")), want: healthcheck.Pass},
		{name: "login by another plugin", prober: user, serve: login(unhex("02000002 fe00"), unhex("07000004 00000002000000")), want: healthcheck.Pass},
		{name: "login refused", prober: user, serve: login("\x13\x00\x00\x02\xff\x15\x04#28000Denied, no"), want: healthcheck.Fail, err: `mysql: login: got "error 1045: Denied, no", want OK`},
	})
}

func TestPostgres(t *testing.T) {
	zero := with(func(p *probe.Postgres, d memory) { p.Dialer = d }, probe.Postgres{})
	lax := with(func(p *probe.Postgres, d memory) { p.Dialer = d }, probe.Postgres{ErrorPasses: true})
	const start = 8 + 5 + 9 + 1
	failed := func(state, msg string) string {
		b := "SFATAL\x00C" + state + "\x00M" + msg + "\x00\x00"
		return "E\x00\x00\x00" + string(rune(len(b)+4)) + b
	}
	testConversations(t, []conversation{
		{name: "ok", prober: zero, serve: after(start, unhex("52 00000008 00000000")), want: healthcheck.Pass},
		{name: "SASL", prober: zero, serve: after(start, unhex("52 00000017 0000000a")+"SCRAM-SHA-256\x00\x00"), want: healthcheck.Pass},
		{name: "GSS continue", prober: zero, serve: after(start, unhex("52 0000000a 00000008 0102")), want: healthcheck.Pass},
		{name: "version negotiation first", prober: zero, serve: after(start, unhex("76 0000000c 00030000 00000000 52 00000008 00000000")), want: healthcheck.Pass},
		{name: "error", prober: zero, serve: after(start, failed("28000", "no role")), want: healthcheck.Fail, err: `postgres: startup: got "error 28000: no role"`},
		{name: "error passes", prober: lax, serve: after(start, failed("28000", "no role")), want: healthcheck.Pass, note: "counts as alive"},
		{name: "starting up never passes", prober: lax, serve: after(start, failed("57P03", "starting up")), want: healthcheck.Fail, err: "57P03"},
		{name: "authentication without kind", prober: zero, serve: after(start, unhex("52 00000006 0000")), want: healthcheck.Fail, err: "four bytes"},
		{name: "forged length", prober: zero, serve: after(start, unhex("52 7fffffff 0000")), want: healthcheck.Fail, err: "message length 2147483647"},
		{name: "length 0", prober: zero, serve: after(start, unhex("52 00000000 0000")), want: healthcheck.Fail, err: "message length 0"},
		{name: "text", prober: zero, serve: after(start, "HTTP/1.1 400\r\n"), want: healthcheck.Fail, err: `got "H"`},
		{name: "closed", prober: zero, serve: afterAndClose(start, "R\x00"), want: healthcheck.Fail, err: "too short: connection closed"},
	})
}

func TestAgent(t *testing.T) {
	zero := with(func(p *probe.Agent, d memory) { p.Dialer = d }, probe.Agent{})
	ask := with(func(p *probe.Agent, d memory) { p.Dialer = d }, probe.Agent{Send: "how are you\n"})
	testConversations(t, []conversation{
		{name: "weight", prober: zero, serve: greet("75%\n"), want: healthcheck.Pass},
		{name: "end of connection ends the line", prober: zero, serve: greetAndClose("up 100%"), want: healthcheck.Pass},
		{name: "asked", prober: ask, serve: func(p *peer) { p.hear(); p.say("ready\r\n"); p.drain() }, want: healthcheck.Pass},
		{name: "down", prober: zero, serve: greet("75%,maxconn:30,maint,down # disk full\n"), want: healthcheck.Fail, err: "agent: report: agent says down: disk full"},
		{name: "nonsense", prober: zero, serve: greet("fine\n"), want: healthcheck.Fail, err: `got "fine"`},
		{name: "empty", prober: zero, serve: greetAndClose(""), want: healthcheck.Fail, err: "connection closed"},
		{name: "no newline", prober: zero, serve: greet("up"), want: healthcheck.Fail, err: `timed out after "up"`},
	})
	synctest.Test(t, func(t *testing.T) {
		res := run(probe.Agent{Dialer: memory{serve: greet("75%,maxconn:30,maint,down\n")}})
		require.Equal(t, &healthcheck.AgentReport{Weight: 75, HasWeight: true, MaxConn: 30, HasMaxConn: true,
			Admin: healthcheck.AgentMaint, Verdict: healthcheck.Fail}, res.Agent)
	})
}

func TestScript(t *testing.T) {
	script := func(steps ...probe.Step) func(memory) healthcheck.Prober {
		return with(func(p *probe.Script, d memory) { p.Dialer = d }, probe.Script{Steps: steps})
	}
	re := regexp.MustCompile
	testConversations(t, []conversation{
		{name: "literal", prober: script(probe.Step{Expect: []byte("ready")}), serve: greet("I am ready"), want: healthcheck.Pass},
		{name: "literal never", prober: script(probe.Step{Expect: []byte("ready")}), serve: greetAndClose("not yet"), want: healthcheck.Fail, err: `script: step 1: got "not yet", want "ready"`},
		{name: "dialogue", prober: script(probe.Step{Match: re(`^220 .*`)}, probe.Step{Name: "hello", Send: []byte("HELO\r\n"), Line: true, Match: re(`^250\b`)}),
			serve: turns("220 hi", "250 ok"), want: healthcheck.Pass},
		{name: "dialogue fails", prober: script(probe.Step{Match: re(`^220 .*`)}, probe.Step{Name: "hello", Send: []byte("HELO\r\n"), Line: true, Match: re(`^250\b`)}),
			serve: turns("220 hi", "500 no"), want: healthcheck.Fail, err: `script: hello: got "500 no", want a match of /^250\b/`},
		{name: "anchored at a line", prober: script(probe.Step{Match: re(`(?m)^OK\r?$`)}), serve: greet("a\r\nb\r\nOK\r\n"), want: healthcheck.Pass},
		{name: "nothing expected, nothing said", prober: script(probe.Step{Match: re(`.+`), Not: true}), serve: greetAndClose(""), want: healthcheck.Pass},
		{name: "nothing expected, something said", prober: script(probe.Step{Match: re(`.+`), Not: true}), serve: greetAndClose("x"), want: healthcheck.Fail, err: `got "x", want not a match of /.+/`},
		{name: "not a word", prober: script(probe.Step{Expect: []byte("ERROR"), Not: true}), serve: greetAndClose("all is fine\n"), want: healthcheck.Pass},
		{name: "a word not wanted", prober: script(probe.Step{Expect: []byte("ERROR"), Not: true}), serve: greet("an ERROR\n"), want: healthcheck.Fail, err: `want not "ERROR"`},
		{name: "line without a word", prober: script(probe.Step{Expect: []byte("ERROR"), Not: true, Line: true}), serve: greet("fine\nERROR\n"), want: healthcheck.Pass},
		{name: "empty reply", prober: script(probe.Step{Expect: []byte("x")}), serve: greetAndClose(""), want: healthcheck.Fail, err: "connection closed without an answer"},
		{name: "too many lines", prober: script(probe.Step{Match: re("x")}), serve: greet(strings.Repeat("\n", 1000)), want: healthcheck.Fail, err: "more than 256 lines"},
		{name: "too much", prober: script(probe.Step{Expect: []byte("x")}), serve: greet(strings.Repeat("y", 100000)), want: healthcheck.Fail, err: "too long"},
		{name: "silence", prober: script(probe.Step{Match: re("x")}), serve: greet("abc"), want: healthcheck.Fail, err: `timed out after "abc"`},
	})
}
