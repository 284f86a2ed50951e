package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "healthd.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func run(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = program().Run(t.Context(), args, cli.IO{Out: &o, Err: &e})
	return status, o.String(), e.String()
}

// converse answers each connection with talk.
func converse(t *testing.T, talk func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	testenv.Accept(t, l, talk)
	return l.Addr().String()
}

func mailServer(t *testing.T) string {
	t.Helper()
	return converse(t, func(c net.Conn) {
		fmt.Fprint(c, "220-mail.example\r\n220 ready\r\n")
		if line, _ := bufio.NewReader(c).ReadString('\n'); line == "QUIT\r\n" {
			fmt.Fprint(c, "221 bye\r\n")
		}
	})
}

func TestProbeShowsTheConversation(t *testing.T) {
	target := mailServer(t)
	status, out, errs := run(t, "probe", "smtp", target)
	require.Zerof(t, status, "%s%s", out, errs)
	at := -1
	for _, want := range []string{"connect to " + target + " over tcp", "from 127.0.0.1:", "< 220-mail.example\n", "< 220 ready\n", "> QUIT\n", "< 221 bye\n", "close\n", "pass in "} {
		i := strings.Index(out, want)
		require.Greaterf(t, i, at, "%q in its place in\n%s", want, out)
		at = i
	}
	status, out, _ = run(t, "probe", "-q", "smtp", target)
	require.Zero(t, status)
	require.Regexp(t, `^pass in \S+\n$`, out)
}

func TestProbeExitStatus(t *testing.T) {
	bad := converse(t, func(c net.Conn) { fmt.Fprint(c, "554 go away\r\n") })
	status, out, _ := run(t, "probe", "smtp", bad)
	require.Equal(t, 1, status)
	require.Contains(t, out, `fail in `)
	require.Contains(t, out, `smtp: greeting: got "554 go away", want 220`)
	status, _, _ = run(t, "probe", "-plugin", "smtp", bad)
	require.Equal(t, 2, status)
	status, out, _ = run(t, "probe", "-json", "smtp", bad)
	require.Equal(t, 1, status)
	require.JSONEq(t, `{"verdict":"fail"}`, regexp.MustCompile(`,"latencySeconds":[^,]+,"error":"[^}]*"`).ReplaceAllString(strings.TrimSpace(out), ""))
	status, out, _ = run(t, "probe", "tcp", "127.0.0.1:1", "interface=no-such-if")
	require.Equal(t, 3, status, "the cause is this machine: %s", out)
	status, _, errs := run(t, "probe", "smtp", "no-such-name.invalid:25")
	require.Equal(t, 3, status)
	require.Contains(t, errs, "no-such-name.invalid")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"probe", "smtp"}, "want METHOD TARGET"},
		{[]string{"probe", "smtp", "127.0.0.1"}, "needs a port"},
		{[]string{"probe", "smpt", "127.0.0.1:25"}, "smpt"},
		{[]string{"probe", "smtp", "127.0.0.1:25", "path=/"}, "path does not go with method smtp; it is for http ssl-complete"},
		{[]string{"probe", "smtp", "127.0.0.1:25", "helo=x"}, "did you mean hello?"},
		{[]string{"probe", "radius", "127.0.0.1:25"}, "Key"},
		{[]string{"probe", "http", "127.0.0.1:25", "status=[99]"}, "99"},
		{[]string{"probe", "script", "127.0.0.1:25", `steps=[{match: "("}]`}, "steps[0].match"},
		{[]string{"dance"}, "want probe, run"},
	} {
		status, _, errs := run(t, c.args...)
		require.Equal(t, 2, status, c.args)
		require.Contains(t, errs, c.want)
	}
}

// A conversation inside TLS is shown twice: as records, and as what they say.
func TestProbeShowsTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "all is well") }))
	defer s.Close()
	target := s.Listener.Addr().String()
	status, out, _ := run(t, "probe", "ssl-complete", target, "content=[{text: all is well}]")
	require.Zerof(t, status, "%s", out)
	for _, want := range []string{"> [TLS client hello, ", "< [TLS server hello, ", "= TLS handshake: TLS 1.3, TLS_", "= certificate 0: O=Acme Co", ">> GET / HTTP/1.1\n", "<< all is well\n", "[TLS application data, "} {
		require.Contains(t, out, want)
	}
	status, out, _ = run(t, "probe", "ssl-complete", target, "verify=true")
	require.Equal(t, 1, status)
	require.Contains(t, out, "certificate")
	status, out, _ = run(t, "probe", "ssl", target)
	require.Zerof(t, status, "%s", out)
	status, out, _ = run(t, "probe", "ssl-complete", target, "min-validity=1000000h")
	require.Equalf(t, 1, status, "%s", out)
}

func TestReadable(t *testing.T) {
	require.Equal(t, []string{"a", "b"}, readable([]byte("a\r\nb")))
	require.Equal(t, []string{"grüße"}, readable([]byte("grüße")))
	require.Equal(t, []string{"00000000  00 01 02                                          |...|"}, readable([]byte{0, 1, 2}))
	require.Len(t, readable(make([]byte, 3000)), 129)
	// Records are told however they are cut.
	whole := []byte{22, 3, 1, 0, 4, 1, 0, 0, 0, 23, 3, 3, 0, 2, 9, 9, 21, 3, 3, 0, 2, 1, 0}
	for cut := 3; cut < len(whole); cut++ {
		var r records
		require.True(t, r.claim(whole[:cut]))
		lines := append(r.feed(whole[:cut]), r.feed(whole[cut:])...)
		require.Equal(t, []string{"[TLS client hello, 4 bytes]", "[TLS application data, 2 bytes]", "[TLS alert, 2 bytes]"}, lines)
	}
}

func TestEveryMethodHasAProber(t *testing.T) {
	extra := map[healthcheck.Method]func(*check){
		healthcheck.RADIUS:  func(c *check) { c.Secret = "s" },
		healthcheck.TFTP:    func(c *check) { c.File = "f" },
		healthcheck.Command: func(c *check) { c.Command = "true" },
	}
	for m := healthcheck.ICMP; m <= healthcheck.Agent; m++ {
		c := check{Method: m, Target: endpoint{"127.0.0.1", 9}}
		if f := extra[m]; f != nil {
			f(&c)
		}
		require.Empty(t, c.faults("x"), m)
		for _, spy := range []*tracer{nil, newTracer(&bytes.Buffer{})} {
			p, err := c.prober(spy)
			require.NoError(t, err, m)
			require.NotNil(t, p)
		}
	}
	status, out, _ := run(t, "methods")
	require.Zero(t, status)
	require.Equal(t, int(healthcheck.Agent), strings.Count(out, "\n"))
}

// TestCheckOfPort: a check without a method is that of its port.
func TestCheckOfPort(t *testing.T) {
	of := func(words string) (healthcheck.Check, error) {
		c, err := decode([]byte("version: 1\nchecks:\n  a: {" + words + "}\n"))
		if err != nil {
			return healthcheck.Check{}, err
		}
		checks, err := c.checks(t.Context())
		require.NoError(t, err)
		return checks[0], nil
	}
	for words, want := range map[string]healthcheck.Prober{
		`target: "10.0.0.1:25"`:                              probe.SMTP{Dialer: probe.Socket{}},
		`target: "10.0.0.1:53", name: a.example`:             probe.DNS{Dialer: probe.Socket{}, Name: "a.example"},
		`target: "10.0.0.1:53", transport: tcp`:              probe.TCP{Dialer: probe.Socket{}},
		`target: "10.0.0.1:80", layer: layer4`:               probe.TCP{Dialer: probe.Socket{}},
		`target: "10.0.0.1:8080", transport: tcp`:            probe.TCP{Dialer: probe.Socket{}},
		`target: "10.0.0.1:8080"`:                            probe.UDP{Dialer: probe.Socket{}, Payload: []byte{}, Expect: []byte{}, Datagrams: 1},
		`target: "10.0.0.1:8080", rise: 1`:                   probe.UDP{Dialer: probe.Socket{}, Payload: []byte{}, Expect: []byte{}},
		`target: "10.0.0.1:443", server-name: a.example`:     probe.TLSHello{Dialer: probe.Socket{}, ServerName: "a.example"},
		`target: "10.0.0.1:8080", method: udp, datagrams: 3`: probe.UDP{Dialer: probe.Socket{}, Payload: []byte{}, Expect: []byte{}, Datagrams: 3},
		`target: "10.0.0.1:1812", secret: x, user: "y"`:      probe.RADIUS{Dialer: probe.Socket{}, Key: "x", User: "y"},
	} {
		c, err := of(words)
		require.NoError(t, err, words)
		require.Equal(t, want, c.Prober, words)
	}
	c, err := of(`target: "10.0.0.1:8080"`)
	require.NoError(t, err)
	require.True(t, c.BringUpLast)
	require.Equal(t, 2, c.Rise)
	require.Equal(t, time.Second, c.FastInterval)
	c, err = of(`target: "10.0.0.1:8080", transport: tcp, layer: layer7`)
	require.NoError(t, err)
	r := c.Prober.Probe(t.Context(), c.Target)
	require.Equal(t, healthcheck.Fail, r.Verdict)
	require.True(t, r.Final)
	require.ErrorIs(t, r.Err, healthcheck.ErrNoMethod)
	for words, want := range map[string]string{
		`target: "10.0.0.1"`:                                 "checks.a: method is missing, and the target has no port",
		`target: "10.0.0.1:80", path: /, layer: layer4`:      "path does not go with method tcp",
		`target: "10.0.0.1:80", method: http, layer: layer4`: "transport and layer are for checks without a method; this one has method http",
		`target: "10.0.0.1:1812"`:                            "RADIUS.Key",
		`interval: 1s`:                                       "target",
	} {
		_, err := of(words)
		require.ErrorContains(t, err, want, words)
	}
}

func TestFaultsNameTheirPlace(t *testing.T) {
	good := `version: 1
checks:
  a: {method: tcp, target: "127.0.0.1:80"}
policies: {p: a}
agents: [{listen: ":1", of: p}]
files: [{path: /tmp/x, of: p}]
`
	_, err := decode([]byte(good))
	require.NoError(t, err)
	for _, c := range []struct{ old, new, want string }{
		{"version: 1", "version: 3", "1:10: version: 3: this program knows version 1"},
		{"version: 1", "version: 0", "1:10: version: 0: this program knows version 1"},
		{"{p: a}", "{p: b}", "4:"},
		{"{p: a}", "{p: a AND}", "policies.p"},
		{"{p: a}", "{p: q, q: p}", "cycle"},
		{"of: p}]\nfiles", "of: z}]\nfiles", `5:29: agents[0].of: "z": want one of [a p]`},
		{`":1"`, "nowhere", `5:19: agents[0].listen: "nowhere": want an address and port`},
		{`":1"`, `":0"`, `agents[0].listen: ":0": want an address and port`},
		{`":1"`, `":http"`, `agents[0].listen: ":http": want an address and port`},
		{"of: p}]\nfiles", "of: p}, {listen: ':1'}]\nfiles", `agents[1].listen: ":1" is that of agents[0].listen too`},
		{"version: 1", "version: 1\nlisten: ':1'", `agents[0].listen: ":1" is that of listen too`},
		{"/tmp/x, of: p", "/tmp/x, of: p, down: 300", "want -254 to 254"},
		{"tcp, ", "tcp, rise: -1, ", "checks.a: "},
		{"tcp, ", "ftp, starttls: true, ", "starttls does not go with method ftp"},
		{":80", "", "needs a port"},
		{"tcp, ", "http, no-match: fail, ", "no-match is given without content"},
		{"tcp, ", "http, content: [{text: a, verdict: maybe}], ", `content[0]: verdict "maybe": want pass or fail`},
		{"tcp, ", "smtp, starttls: true, ca: /no/such, ", "/no/such"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		require.NotEqual(t, good, bad, c.new)
		_, err := decode([]byte(bad))
		require.ErrorContains(t, err, c.want, bad)
	}

	// What cannot be read has one fault, and none of what leads to it has another.
	_, err = decode([]byte(strings.Replace(good, "{p: a}", "{p: a XOR a, q: p}", 1)))
	require.EqualError(t, err, `4:15: policies.p: expression "a XOR a": byte 2: got "XOR", want AND, OR or the end`)
}

func TestExampleFileIsRight(t *testing.T) {
	status, text, _ := run(t, "example")
	require.Zero(t, status)
	name := write(t, text)
	status, out, errs := run(t, "check", name)
	require.Zerof(t, status, "%s", errs)
	require.Contains(t, out, "right: 4 checks, 2 policies, 1 agents, 1 files")
	status, out, _ = run(t, "explain", name, "shop", "web1=down", "web2=up", "db=up")
	require.Zero(t, status)
	require.Contains(t, out, "shop is up")
	status, out, _ = run(t, "explain", name, "shop", "db=down")
	require.Equal(t, 1, status)
	require.Contains(t, out, "shop is down: db down")
	status, _, _ = run(t, "explain", name, "shop")
	require.Equal(t, 3, status)
	for _, command := range []string{"reference", "schema"} {
		status, out, _ = run(t, command)
		require.Zero(t, status)
		require.Contains(t, out, "half-open")
	}
}

func TestOnce(t *testing.T) {
	var sick atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer s.Close()
	track := filepath.Join(t.TempDir(), "track")
	name := write(t, fmt.Sprintf(`version: 1
checks:
  web: {method: http, target: "%s", interval: 100ms, timeout: 10s, fall: 2}
  gone: {method: tcp, target: "127.0.0.1:1", interval: 100ms, timeout: 10s}
  mail: {method: smtp, target: "%s", interval: 100ms, timeout: 10s}
policies: {any: web OR gone, both: web AND gone}
files: [{path: %q, of: any}]
`, s.Listener.Addr(), mailServer(t), track))
	status, out, errs := run(t, "once", name)
	require.NoFileExists(t, track, "a look that moves addresses")
	require.Equalf(t, 1, status, "%s%s", out, errs)
	require.Regexp(t, `(?m)^any +up .* web up`, out)
	require.Regexp(t, `(?m)^both +down .* gone down`, out)
	require.Regexp(t, `(?m)^mail +up +active +smtp `, out)
	status, _, _ = run(t, "once", name, "any", "mail")
	require.Zero(t, status)
	sick.Store(true)
	status, _, _ = run(t, "once", "-plugin", name, "any")
	require.Equal(t, 2, status)
	status, _, errs = run(t, "once", name, "nobody")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "nobody")
	// Nothing decided in no time.
	status, _, _ = run(t, "once", "-timeout", "1ns", name, "any")
	require.Equal(t, 3, status)
}

func TestDescribe(t *testing.T) {
	s := &sniffed{target: netip.MustParseAddrPort("1.1.1.1:1")}
	require.Empty(t, s.describe(nil))
	require.Empty(t, s.describe([]byte{0x45, 0}))
}

func FuzzDescribe(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20})
	f.Fuzz(func(t *testing.T, b []byte) {
		(&sniffed{target: netip.MustParseAddrPort("1.1.1.1:1"), decode: tftpLine}).describe(b)
		for _, m := range []healthcheck.Method{healthcheck.DNS, healthcheck.RADIUS, healthcheck.TFTP} {
			for _, tcp := range []bool{false, true} {
				if d := decoder(&check{Method: m, OverTCP: tcp}); d != nil {
					d(b)
				}
			}
		}
		var r records
		if r.claim(b) {
			r.feed(b)
		}
		readable(b)
	})
}

// eventually waits for a condition, generously.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// start runs a daemon until the test ends.
func start(t *testing.T, name string, log *lines) *daemon {
	t.Helper()
	d, err := newDaemon(name, logTo(log))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("healthd did not stop")
		}
	})
	return d
}
