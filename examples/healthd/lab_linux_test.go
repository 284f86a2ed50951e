package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
)

// built builds the program once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "healthd")
	if err != nil {
		return "", err
	}
	return rig.Build(dir, "healthd")
})

func TestMain(m *testing.M) {
	status := m.Run()
	if bin, err := built(); err == nil {
		_ = os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(status)
}

// labHosts are the host of healthd and two web servers that die and return, each a namespace of its own.
type labHosts struct {
	bin     string
	watcher *netns.Namespace
	servers [2]*netns.Namespace
	kills   [2]func()
}

func newHosts(t *testing.T) *labHosts {
	testenv.NeedNetns(t)
	h := &labHosts{}
	var err error
	h.bin, err = built()
	require.NoError(t, err)
	rig.Hosts(t, &h.watcher, &h.servers[0], &h.servers[1])
	for i, s := range h.servers {
		rig.Cable{Hub: h.watcher, Host: s, Name: fmt.Sprintf("e%d", i+1), V4: "10.9.%d.%d/24", V6: "fd09:%d::%d/64", Number: i + 1}.Plug(t)
		h.serve(t, i)
	}
	return h
}

// serve starts a web server; kill ends it with all its connections.
func (h *labHosts) serve(t *testing.T, i int) {
	t.Helper()
	l, err := h.servers[i].Listen(t.Context(), "tcp", ":80")
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "server %d %s", i+1, r.URL.Path) })}
	go func() { _ = srv.Serve(l) }()
	h.kills[i] = func() { srv.Close() }
	t.Cleanup(h.kills[i])
}

// run runs the program on its host, to its end.
func (h *labHosts) run(t *testing.T, args ...string) (status int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var b []byte
	err := h.watcher.Do(func() (err error) {
		b, err = exec.CommandContext(ctx, h.bin, args...).CombinedOutput()
		return err
	})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(b)
	}
	require.NoError(t, err)
	return 0, string(b)
}

// get asks the status page, from its own host.
func (h *labHosts) get(path string) (status int, body string) {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: h.watcher.DialContext}
	r, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Get("http://127.0.0.1:9180" + path) //nolint:noctx // a test's own
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

func (h *labHosts) ask(t *testing.T, line string) string {
	t.Helper()
	c, err := h.watcher.DialContext(t.Context(), "tcp", "127.0.0.1:9181")
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(c, line)
	require.NoError(t, err)
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(b)
}

// The program in a namespace, and servers that die, fall silent and return: everybody who asks is told so.
func TestServersThatDieAndReturn(t *testing.T) {
	h := newHosts(t)
	track := filepath.Join(t.TempDir(), "track")
	text := fmt.Sprintf(`version: 1
listen: 127.0.0.1:9180
checks:
  web1: {method: http, target: "10.9.1.2:80", interval: 200ms, timeout: 5s, fall: 2}
  web2: {method: http, target: "[fd09:2::2]:80", interval: 200ms, timeout: 5s, fall: 2}
  host1: {method: icmp, target: "fd09:1::2", interval: 300ms, timeout: 5s, fall: 2}
policies: {any: web1 OR web2, both: web1 AND web2, site: both AND host1}
agents: [{listen: "127.0.0.1:9181"}]
files: [{path: %q, of: any}]
`, track)
	name := write(t, text)
	p := rig.Start(t, h.watcher, nil, h.bin, "run", "-log-json", name)
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Log(p.Log)
		}
	})
	up := func(policy string, want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s: want %d", policy, want), func() bool { status, _ := h.get("/up/" + policy); return status == want })
	}
	const good, bad = http.StatusOK, http.StatusServiceUnavailable
	up("site", good)
	require.Equal(t, "up\n", h.ask(t, "both\n"))
	eventually(t, "the file", func() bool { return content(track) == "0\n" })
	status, out := h.run(t, "once", name, "both")
	require.Zero(t, status, out)
	status, out = h.run(t, "probe", "http", "[fd09:2::2]:80", "path=/x", "content=[{text: server 2 /x}]")
	require.Zero(t, status, out)
	for _, want := range []string{"connect to [fd09:2::2]:80 over tcp", "> GET /x HTTP/1.1", "< HTTP/1.1 200 OK", "< server 2 /x", "pass in "} {
		require.Contains(t, out, want)
	}

	// A server dies: its port refuses.
	h.kills[0]()
	up("both", bad)
	up("any", good)
	require.Contains(t, h.ask(t, "both\n"), "down #both is down: web1 down")
	require.Equal(t, "0\n", content(track), "the policy of the file is up")
	_, metrics := h.get("/metrics")
	require.Contains(t, metrics, "healthd_up{name=\"web1\"} 0\n")
	require.Contains(t, metrics, "healthd_up{name=\"web2\"} 1\n")
	status, out = h.run(t, "probe", "http", "10.9.1.2:80")
	require.Equal(t, 1, status, out)
	require.Contains(t, out, "connection refused")
	status, out = h.run(t, "once", "-plugin", name, "both")
	require.Equal(t, 2, status, out)

	// The other one, too.
	h.kills[1]()
	up("any", bad)
	eventually(t, "the file", func() bool { return content(track) == "1\n" })

	// Both return.
	h.serve(t, 0)
	h.serve(t, 1)
	up("site", good)
	eventually(t, "the file", func() bool { return content(track) == "0\n" })
	require.Equal(t, "up\n", h.ask(t, "both\n"))

	// A host falls silent: nobody refuses, nothing answers.
	rig.Shell(t, h.servers[0], "ip link set eth0 down")
	up("host1", bad)
	up("web1", bad)
	up("any", good)
	status, out = h.run(t, "probe", "-packets", "http", "10.9.1.2:80", "timeout=1s")
	require.NotZero(t, status, out)
	rig.Shell(t, h.servers[0], "ip link set eth0 up")
	up("web1", good)

	// A changed file is in force without a restart.
	replaceFile(t, name, strings.Replace(text, "policies: {", "policies: {neither: NOT any, ", 1))
	up("neither", bad)
	require.NoError(t, p.Stop(30*time.Second), "SIGTERM is no failure")
	for _, line := range strings.Split(strings.TrimSpace(p.Log.String()), "\n") {
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Contains(t, p.Log.String(), `"msg":"policy changed","policy":"any","is":"down"`)
	require.Contains(t, p.Log.String(), `"msg":"stopped"`)
}

// On a terminal the table renews itself, in colours, and the log is below it.
func TestTableRenews(t *testing.T) {
	h := newHosts(t)
	name := write(t, `version: 1
checks:
  web1: {method: http, target: "10.9.1.2:80", interval: 200ms, timeout: 10s, fall: 2}
  web2: {method: http, target: "[fd09:2::2]:80", interval: 200ms, timeout: 10s, fall: 2}
policies: {both: web1 AND web2}
`)
	tty := rig.NewTerminal(t, 160, 24)
	cmd := exec.Command(h.bin, "run", "-table", name)
	cmd.Stdout, cmd.Stderr = tty.TTY, tty.TTY
	require.NoError(t, h.watcher.Do(cmd.Start))
	end(t, cmd)
	shows := func(pattern string) {
		t.Helper()
		re := regexp.MustCompile(pattern)
		eventually(t, "the table shows "+pattern, func() bool {
			all := tty.Screens()
			return len(all) > 0 && re.MatchString(all[len(all)-1])
		})
	}
	shows(`(?m)^both +up .*\n(.*\n)*web1 +up +active +http +10\.9\.1\.2:80 +\d+s +`)
	h.kills[1]()
	shows(`(?m)^both +down .* web2 down .*\nweb1 +up .*\nweb2 +down +failed .*connection refused\n\n(.*\n)*.*msg="policy changed" policy=both is=down`)
	require.Contains(t, tty.Text(), "\x1b[31mweb2", "what is down is red")
	require.Contains(t, tty.Text(), "\x1b[32mweb1", "what is up is green")
	h.serve(t, 1)
	shows(`(?m)^both +up `)
	for _, s := range tty.Screens() {
		require.LessOrEqual(t, strings.Count(s, "\n"), 23, "it fits")
		for line := range strings.Lines(s) {
			require.Less(t, len([]rune(line)), 161, "it fits")
		}
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
	eventually(t, "the cursor is back", func() bool { return strings.HasSuffix(tty.Text(), "\x1b[?25h\n") })
}

// Packets of probers whose sockets are their own, where the host talks to itself.
func TestProbeShowsPackets(t *testing.T) {
	h := newHosts(t)
	for _, target := range []string{"127.0.0.1", "::1"} {
		status, out := h.run(t, "probe", "icmp", target)
		require.Zero(t, status, out)
		require.Regexp(t, `> \[ICMP(v6)? EchoRequest`, out)
		require.Regexp(t, `< \[ICMP(v6)? EchoReply`, out)
	}
	l, err := h.watcher.Listen(t.Context(), "tcp", "127.0.0.1:25")
	require.NoError(t, err)
	testenv.Accept(t, l, func(net.Conn) {})
	status, out := h.run(t, "probe", "tcp", "127.0.0.1:25", "half-open=true")
	require.Zero(t, status, out)
	require.Regexp(t, `> \[TCP \d+ > 25 SYN seq \d+ ack 0, \d+ bytes\]\n(.*\n)*.*< \[TCP 25 > \d+ SYN\+ACK seq`, out)
}

// -packets shows the packets besides the conversation.
func TestProbeShowsPacketsOfAConversation(t *testing.T) {
	h := newHosts(t)
	status, out := h.run(t, "probe", "-packets", "http", "10.9.1.2:80")
	require.Zero(t, status, out)
	for _, want := range []string{`> \[TCP \d+ > 80 SYN seq \d+`, `< \[TCP 80 > \d+ SYN\+ACK seq \d+ ack \d+`, `> HEAD / HTTP/1\.1`, `> \[TCP \d+ > 80 ACK\+PSH`, `< \[TCP 80 > \d+ ACK\+PSH`, `pass in `} {
		require.Regexp(t, want, out)
	}
	status, out = h.run(t, "probe", "-packets", "tcp", "10.9.1.2:81")
	require.Equal(t, 1, status, out)
	require.Regexp(t, `< \[TCP 81 > \d+ ACK\+RST`, out)
}
