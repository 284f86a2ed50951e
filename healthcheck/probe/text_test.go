package probe_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

// greet is a server that speaks first and then listens.
func greet(greeting string) func(*peer) {
	return func(p *peer) {
		p.say(greeting)
		p.drain()
	}
}

// greetAndClose hangs up after its greeting.
func greetAndClose(greeting string) func(*peer) {
	return func(p *peer) { p.say(greeting) }
}

// turns is a server that speaks first, and then once after each line it hears.
func turns(replies ...string) func(*peer) {
	return func(p *peer) {
		for i, r := range replies {
			if i > 0 {
				p.hear()
			}
			p.say(r + "\r\n")
		}
		p.drain()
	}
}

// byName makes a prober of a text protocol.
func byName(proto string) func(memory) healthcheck.Prober {
	return func(d memory) healthcheck.Prober {
		switch proto {
		case "ftp":
			return probe.FTP{Dialer: d}
		case "smtp":
			return probe.SMTP{Dialer: d}
		case "smtp+ehlo":
			return probe.SMTP{Dialer: d, Hello: "lb.example.com"}
		case "nntp":
			return probe.NNTP{Dialer: d}
		case "pop3", "pop":
			return probe.POP3{Dialer: d}
		case "imap":
			return probe.IMAP{Dialer: d}
		case "telnet":
			return probe.Telnet{Dialer: d}
		case "rtsp":
			return probe.RTSP{Dialer: d}
		case "http":
			return probe.HTTP{Dialer: d}
		case "ldap":
			return probe.LDAP{Dialer: d}
		}
		return nil
	}
}

func TestGreetings(t *testing.T) {
	rows := []conversation{
		{name: "ftp", serve: greet("220 ready\r\n")},
		{name: "ftp without text", serve: greet("220\r\n")},
		{name: "ftp bare LF", serve: greet("220 ready\n")},
		{name: "ftp multi-line", serve: greet("220-a\r\n 220 not yet\r\n221 nor this\r\nfree text\r\n220 b\r\n")},
		{name: "ftp 120", serve: greet("120 in 5 minutes\r\n"), err: `ftp: greeting: got "120 in 5 minutes", want 220`},
		{name: "ftp 421 multi-line decides at once", serve: greet("421-busy\r\n"), err: `got "421-busy", want 220`},
		{name: "ftp four digits", serve: greet("2200 ready\r\n"), err: "want 220"},
		{name: "ftp silence", serve: greet(""), err: "ftp: greeting: timed out without an answer"},
		{name: "ftp cut in a line, then silence", serve: greet("220 rea"), err: `ftp: greeting: timed out after "220 rea"`},
		{name: "ftp cut between lines, then silence", serve: greet("220-first\r\n"), err: `timed out after "220-first"`},
		{name: "ftp cut in a line, then end", serve: greetAndClose("220 rea"), err: `ftp: greeting: connection closed after "220 rea"`},
		{name: "ftp without end", serve: greet("220-a\r\n" + strings.Repeat("220-b\r\n", 20000)), err: "reply too long"},
		{name: "ftp long line", serve: greet("220 " + strings.Repeat("x", 17000) + "\r\n")},
		{name: "smtp", serve: greet("220 foo.com Simple Mail Transfer Service Ready\r\n")},
		{name: "smtp multi-line", serve: greet("220-first\r\n220-second\r\n220 third\r\n")},
		{name: "smtp 554", serve: greet("554 no service\r\n"), err: `smtp: greeting: got "554 no service", want 220`},
		{name: "smtp other code in the middle", serve: greet("220-a\r\n554 b\r\n"), err: `got "554 b", want every line to begin with 220`},
		{name: "smtp is none", serve: greet("I'm not a SMTP server\r\n"), err: "I'm not a SMTP server"},
		{name: "smtp cut, then silence", serve: greet("220-first\r\n220 thi"), err: `timed out after "220 thi"`},
		{name: "smtp closes at once", serve: greetAndClose(""), err: "smtp: greeting: connection closed without an answer"},
		{name: "smtp+ehlo", serve: turns("220 x SMTP Server", "250 x", "221 x closing")},
		{name: "smtp+ehlo multi-line", serve: turns("220 x", "250-x\r\n250-KEYWORD\r\n250 LAST KEYWORD", "221 bye")},
		{name: "smtp+ehlo refused", serve: turns("220 x", "512 DNS error"), err: `smtp: EHLO: got "512 DNS error", want 250`},
		{name: "nntp", serve: greet("200 posting allowed\r\n")},
		{name: "nntp 201", serve: greet("201 no posting\r\n")},
		{name: "nntp 400", serve: greet("400 gone\r\n"), err: `nntp: greeting: got "400 gone", want 200 or 201`},
		{name: "nntp 2000", serve: greet("2000\r\n"), err: "want 200 or 201"},
		{name: "pop3", serve: greet("+OK ready\r\n")},
		{name: "pop3 alone", serve: greet("+OK\r\n")},
		{name: "pop3 locked", serve: greet("-ERR locked\r\n"), err: `pop3: greeting: got "-ERR locked", want +OK`},
		{name: "pop3 OKAY", serve: greet("+OKAY\r\n"), err: "want +OK"},
		{name: "imap", serve: greet("* OK ready\r\n")},
		{name: "imap lower case", serve: greet("* ok ready\r\n")},
		{name: "imap preauth", serve: greet("* PREAUTH in\r\n")},
		{name: "imap bye", serve: greet("* BYE full\r\n"), err: `imap: greeting: got "* BYE full", want * OK or * PREAUTH`},
		{name: "telnet", serve: greet("\xff\xfd\x18")},
		{name: "telnet IAC alone", serve: greet("\xff")},
		{name: "telnet text", serve: greet("login: "), err: "telnet: negotiation: got \"l\", want IAC (0xff) first"},
		{name: "telnet silence", serve: greet(""), err: "timed out"},
		{name: "rtsp", serve: answer("RTSP/1.0 200 OK\r\nCSeq: 1\r\nPublic: OPTIONS\r\n\r\n")},
		{name: "rtsp 405", serve: answer("RTSP/1.0 405 Method Not Allowed\r\nCSeq: 1\r\n\r\n"), err: `rtsp: OPTIONS: got "RTSP/1.0 405 Method Not Allowed", want status 200-299`},
		{name: "rtsp is http", serve: answer("HTTP/1.0 400 Bad Request\r\n\r\n"), err: "want a status line"},
	}
	for i := range rows {
		r := &rows[i]
		proto, _, _ := strings.Cut(r.name, " ")
		r.prober = byName(proto)
		r.want = healthcheck.Pass
		if r.err != "" {
			r.want = healthcheck.Fail
		}
	}
	testConversations(t, rows)
}

// TestFarewell shows that the peer hears goodbye before the connection ends, and that a
// peer that does not answer it is not waited for.
func TestFarewell(t *testing.T) {
	for proto, talk := range map[string]struct{ greeting, bye string }{
		"ftp":  {"220 x\r\n", "QUIT"},
		"smtp": {"220 x\r\n", "QUIT"},
		"nntp": {"200 x\r\n", "QUIT"},
		"pop3": {"+OK x\r\n", "QUIT"},
		"imap": {"* OK x\r\n", "b LOGOUT"},
	} {
		t.Run(proto, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				heard := make(chan string, 1)
				start := time.Now()
				res := run(byName(proto)(memory{serve: func(p *peer) {
					p.say(talk.greeting)
					heard <- p.hear()
					p.drain()
				}}))
				require.Equal(t, healthcheck.Pass, res.Verdict)
				require.Equal(t, talk.bye, <-heard)
				require.Less(t, time.Since(start), time.Second)
				require.Zero(t, res.Latency, "the farewell is no part of it")
			})
		})
	}
}

func TestRFCGreetings(t *testing.T) {
	b, err := os.ReadFile(testenv.SharedFile(t, "l7/rfc_greetings.json"))
	require.NoError(t, err)
	var file struct {
		Greetings []struct {
			Proto, Greeting, Note string
			Up                    bool
		}
	}
	require.NoError(t, json.Unmarshal(b, &file))
	require.NotEmpty(t, file.Greetings)
	for _, g := range file.Greetings {
		t.Run(g.Proto+" "+g.Greeting, func(t *testing.T) {
			for _, pieces := range []int{0, 1} {
				synctest.Test(t, func(t *testing.T) {
					res := run(byName(g.Proto)(memory{serve: greet(g.Greeting), pieces: pieces}))
					require.Equal(t, g.Up, res.Verdict.OK(), "%v", res.Err)
				})
			}
		})
	}
}

func TestRTSPResponses(t *testing.T) {
	b, err := os.ReadFile(testenv.SharedFile(t, "l7/rtsp_responses.json"))
	require.NoError(t, err)
	var file struct {
		WellFormed []string `json:"well_formed"`
		Malformed  []string `json:"malformed_fuzz_inputs"`
	}
	require.NoError(t, json.Unmarshal(b, &file))
	for _, r := range file.WellFormed {
		synctest.Test(t, func(t *testing.T) {
			res := run(probe.RTSP{Dialer: memory{serve: answer(r)}})
			require.Equal(t, !strings.Contains(r, " 405 "), res.Verdict.OK(), "%q: %v", r, res.Err)
		})
	}
	for _, r := range file.Malformed {
		synctest.Test(t, func(t *testing.T) {
			res := run(probe.RTSP{Dialer: memory{serve: answerAndClose(r)}})
			require.Equal(t, healthcheck.Fail, res.Verdict, "%q", r)
		})
	}
}
