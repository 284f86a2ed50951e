package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/examples/internal/rig"
	"github.com/lbprim/lbprim/internal/testenv"
)

// manager is a service manager that listens as sd_notify(3) says.
type manager struct {
	t    *testing.T
	path string
	said chan string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(testenv.SocketDir(t), "notify"), said: make(chan string, 1000)}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := l.Read(b)
			if err != nil {
				return
			}
			select {
			case m.said <- string(b[:n]):
			default: // watchdogs that nobody waits for
			}
		}
	}()
	return m
}

// hears waits for something that begins so, and passes over watchdogs.
func (m *manager) hears(begin string) string {
	m.t.Helper()
	end := time.After(patience)
	for {
		select {
		case text := <-m.said:
			if strings.HasPrefix(text, begin) {
				return text
			}
			require.Equal(m.t, "WATCHDOG=1", text, "while waiting for %s", begin)
		case <-end:
			require.FailNow(m.t, "not heard", begin)
		}
	}
}

// TestUnderAServiceManager: what is told to systemd, SIGHUP from the first moment on, the capabilities that are left, and logs in JSON.
func TestUnderAServiceManager(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	m := newManager(t)
	dir := testenv.SocketDir(t)
	p := &process{t: t, h: h, file: filepath.Join(dir, "l4lb.yaml"), socket: filepath.Join(dir, "s"), log: &rig.Log{}}
	p.env = []string{"NOTIFY_SOCKET=" + m.path, "WATCHDOG_USEC=400000"}
	text := strings.NewReplacer("{socket: none}", "{socket: "+p.socket+"}").Replace(fmt.Sprintf(labFile, "tun", "e1, e2"))

	// A named pipe holds up the reading of the file: a SIGHUP that comes then neither ends the program nor is lost.
	require.NoError(t, unix.Mkfifo(p.file, 0o600))
	p.run("-json")
	t.Cleanup(p.stop)
	reader := func() (w *os.File) {
		p.eventually("it reads the file", func() (ok bool) {
			fd, err := unix.Open(p.file, unix.O_WRONLY|unix.O_NONBLOCK, 0)
			if err == nil {
				w = os.NewFile(uintptr(fd), p.file)
			}
			return err == nil
		})
		return w
	}
	offer := func() {
		w := reader()
		require.NoError(t, p.Signal(syscall.SIGHUP))
		p.eventually("the signal has come", func() bool { return !strings.Contains(statusOf(t, p.Pid, "SigPnd")+statusOf(t, p.Pid, "ShdPnd"), "1") })
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
	offer()
	require.Equal(t, "READY=1\nSTATUS=2 services, 2 farms", m.hears("READY=1"))
	require.Regexp(t, `^RELOADING=1\nMONOTONIC_USEC=\d+$`, m.hears("RELOADING=1"))
	offer()
	require.Equal(t, "READY=1\nSTATUS=2 services, 2 farms", m.hears("READY=1"))
	// The pipe goes while the program reads it, because of the second signal.
	require.NoError(t, os.WriteFile(p.file+".new", []byte(text), 0o600))
	m.hears("RELOADING=1")
	w := reader()
	require.NoError(t, os.Rename(p.file+".new", p.file))
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	m.hears("READY=1")
	p.ready()

	// The watchdog hears that the workers answer, again and again.
	for range 3 {
		m.watchdog()
	}
	// SIGHUP, with a file that is right and one that is not.
	reloads := p.status().Config.Reloads
	require.NoError(t, p.Signal(syscall.SIGHUP))
	p.eventually("reloaded", func() bool { return p.status().Config.Reloads > reloads })
	p.write(strings.Replace(text, "version: 1", "version: 3", 1))
	require.NoError(t, p.Signal(syscall.SIGHUP))
	p.eventually("the manager is told of the refusal", func() bool {
		return strings.HasSuffix(m.next(), "STATUS=2 services, 2 farms; the last reload was refused")
	})
	p.write(text)
	p.eventually("and of its end", func() bool { return strings.HasSuffix(m.next(), "STATUS=2 services, 2 farms") })

	p.fewCapabilities(t)
	p.stop()
	p.eventually("the end is told", func() bool { return m.next() == "STOPPING=1" })

	// Each line of the log is an object with the time, the level and the message.
	lines := 0
	for sc := bufio.NewScanner(strings.NewReader(p.log.String())); sc.Scan(); lines++ {
		var x struct {
			Time       time.Time
			Level, Msg string
		}
		require.NoError(t, json.Unmarshal(sc.Bytes(), &x), sc.Text())
		require.NotZero(t, x.Time)
		require.Contains(t, []string{"DEBUG", "INFO", "WARN", "ERROR"}, x.Level)
		require.NotEmpty(t, x.Msg)
	}
	require.Greater(t, lines, 5)
	require.Contains(t, p.log.String(), `"msg":"the old configuration stays in force"`)
}

// next is the next that is said.
func (m *manager) next() string {
	select {
	case text := <-m.said:
		return text
	case <-time.After(patience):
		require.FailNow(m.t, "silence")
		return ""
	}
}

func (m *manager) watchdog() {
	m.t.Helper()
	for end := time.Now().Add(patience); m.next() != "WATCHDOG=1"; {
		require.True(m.t, time.Now().Before(end), "no watchdog")
	}
}

// statusOf is a field of the status of a thread or process (proc(5)).
func statusOf(t *testing.T, pid int, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	return fieldOf(t, b, field)
}

func fieldOf(t *testing.T, status []byte, field string) string {
	t.Helper()
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	require.FailNow(t, "no such field", field)
	return ""
}

// fewCapabilities looks at every thread of the process: CAP_NET_ADMIN and CAP_NET_RAW are left, and nothing brings more.
func (p *process) fewCapabilities(t *testing.T) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.Pid))
	require.NoError(t, err)
	require.NotEmpty(t, threads)
	for _, thread := range threads {
		var id int
		_, err := fmt.Sscan(thread.Name(), &id)
		require.NoError(t, err)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id))
		if err != nil {
			continue // it has ended
		}
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
			require.Equal(t, "0000000000003000", fieldOf(t, status, set), "%s of thread %d", set, id)
		}
		for _, set := range []string{"CapInh", "CapAmb"} {
			require.Equal(t, "0000000000000000", fieldOf(t, status, set), "%s of thread %d", set, id)
		}
		require.Equal(t, "1", fieldOf(t, status, "NoNewPrivs"))
	}
}

// Who starts it without what it needs is told what that is.
func TestRunSaysWhatItLacks(t *testing.T) {
	tools := testenv.NeedServers(t, "unshare", "setpriv")
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	bin, err := built()
	require.NoError(t, err)
	file := func(device, interfaces string) string {
		text := strings.Replace(fmt.Sprintf(labFile, device, interfaces), "{socket: none}", "{socket: "+filepath.Join(testenv.SocketDir(t), "s")+"}", 1)
		return write(t, text)
	}
	const noTUN = "mkdir -p /dev/net; mount -t tmpfs none /dev/net; exec \"$@\""
	for _, c := range []struct {
		name, file string
		with       []string
		want       []string
	}{
		{"no TUN device", file("tun", "e1"), []string{tools[0], "-m", "sh", "-ec", noTUN, "sh"}, []string{"/dev/net/tun", "fix: modprobe tun; in a container: --device /dev/net/tun"}},
		{"no capability, tun", file("tun", "e1"), []string{tools[1], "--bounding-set=-all", "--inh-caps=-all"}, []string{"not permitted", "CAP_NET_ADMIN and CAP_NET_RAW"}},
		{"no capability, afpacket", file("afpacket", "c0"), []string{tools[1], "--bounding-set=-all", "--inh-caps=-all"}, []string{"not permitted", "CAP_NET_ADMIN and CAP_NET_RAW"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasSuffix(c.name, "afpacket") {
				require.NoError(t, h.balancer.Sysctl("net.ipv4.ip_forward", "0"))
				require.NoError(t, h.balancer.Sysctl("net.ipv6.conf.all.forwarding", "0"))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var out []byte
			require.NoError(t, h.balancer.Do(func() error {
				args := slices.Concat(c.with[1:], []string{bin, "run", c.file})
				out, err = exec.CommandContext(ctx, c.with[0], args...).CombinedOutput()
				return nil
			}))
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode(), "%s", out)
			for _, want := range c.want {
				require.Contains(t, string(out), want)
			}
		})
	}
}

// TestAdminOverTCP calls every client command by TLS with a token, and the real doors by those who may not.
func TestAdminOverTCP(t *testing.T) {
	h := newHosts(t)
	require.NoError(t, h.balancer.Router())
	dir := t.TempDir()
	cert, key, token := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), filepath.Join(dir, "token")
	selfSigned(t, cert, key)
	const secret = "a-token-of-the-test-0123"
	require.NoError(t, os.WriteFile(token, []byte(secret+"\n"), 0o600))
	doors := fmt.Sprintf("{socket: SOCKET, listen: '127.0.0.1:9443', names: [lb1.example.net], certificate: %s, key: %s, token-file: %s}", cert, key, token)
	p := h.start(t, strings.Replace(fmt.Sprintf(labFile, "tun", "e1, e2"), "{socket: none}", doors, 1))
	p.ready()
	h.traffic(t, "10.9.100.1")

	base := []string{"-url", "https://127.0.0.1:9443", "-token-file", token, "-ca", cert}
	over := func(args ...string) (string, error) { return p.l4lb(append(args, base...)...) }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, "web4"},
		{[]string{"status", "-names"}, "v6/s2"},
		{[]string{"top", "-n", "1"}, "rates since the start"},
		{[]string{"sessions", "-limit", "1"}, "VIRTUAL ADDRESS"},
		{[]string{"sessions", "-kill", "-client", "192.0.2.1"}, "0 sessions ended"},
		{[]string{"capture", "-n", "1", "-w", filepath.Join(dir, "x.pcapng")}, ""},
		{[]string{"trace", "-n", "1"}, "web4"},
		{[]string{"drain", "v4/s1"}, "v4/s1: draining"},
		{[]string{"disable", "v4/s1"}, "v4/s1: disabled"},
		{[]string{"enable", "v4/s1"}, "v4/s1: available"},
		{[]string{"explain", "-src", "10.9.0.2:1", "-dst", "10.9.100.1:80"}, "v4/s"},
		{[]string{"reload"}, "reloaded"},
	} {
		out, err := over(c.args...)
		require.NoError(t, err, "%v: %s\n%v", c.args, out, p.log)
		require.Contains(t, out, c.want, c.args)
	}
	wrong := filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("a-wrong-token-0123456789\n"), 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-url", "https://127.0.0.1:9443", "-token-file", wrong, "-ca", cert}, "Authorization: Bearer TOKEN"},
		{[]string{"-url", "https://127.0.0.1:9443", "-token-file", token}, "certificate"},
		{[]string{"-url", "https://127.0.0.1:9443", "-token-file", token, "-ca", token}, "has no certificate in PEM"},
		{[]string{"-url", "https://127.0.0.1:9443", "-ca", cert}, "-token-file"},
		{[]string{"-url", "http://127.0.0.1:9443", "-token-file", token}, "want one that begins with https://"},
		{[]string{"-url", "https://127.0.0.1:9", "-token-file", token, "-ca", cert}, "no l4lb at https://127.0.0.1:9"},
	} {
		out, err := p.l4lb(append([]string{"status"}, c.args...)...)
		require.Error(t, err, c.args)
		require.Contains(t, out, c.want, c.args)
	}
	p.strangers(t, cert, secret)

	// Another token and certificate are in force by a reload, and the old token opens nothing any more.
	selfSigned(t, cert, key)
	require.NoError(t, os.WriteFile(token, []byte("another-token-of-the-test\n"), 0o600))
	p.must("reload")
	out, err := over("status")
	require.NoError(t, err, out)
	require.NoError(t, os.WriteFile(wrong, []byte(secret), 0o600))
	out, err = p.l4lb("status", "-url", "https://127.0.0.1:9443", "-token-file", wrong, "-ca", cert)
	require.Error(t, err)
	require.Contains(t, out, "Authorization: Bearer TOKEN")
}

// strangers knocks at both doors of the process: pages of other sites, names that are not its own, callers without the token.
func (p *process) strangers(t *testing.T, cert, secret string) {
	t.Helper()
	socket := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
	tcp := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return p.h.balancer.DialContext(ctx, network, "127.0.0.1:9443")
	}, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // names are what is tested
	refused := p.status().Config.Reloads
	for _, c := range []struct {
		name          string
		by            *http.Client
		method, url   string
		header        []string
		code          int
		says, header1 string
	}{
		{"no token", tcp, "GET", "https://lb1.example.net:9443/api/v1/status", nil, 401, "Authorization: Bearer TOKEN", `Bearer realm="l4lb"`},
		{"a wrong token", tcp, "GET", "https://lb1.example.net:9443/metrics", []string{"Authorization", "Bearer " + secret + "4"}, 401, "Authorization: Bearer TOKEN", `Bearer realm="l4lb"`},
		{"profiles without a token", tcp, "GET", "https://lb1.example.net:9443/debug/pprof/heap", nil, 401, "Bearer", `Bearer realm="l4lb"`},
		{"a name that was bound to the address", tcp, "GET", "https://evil.example:9443/api/v1/status", []string{"Authorization", "Bearer " + secret}, 403, "is not a name of this interface", ""},
		{"the same at the socket", socket, "GET", "http://evil.example/api/v1/status", nil, 403, "is not a name of this interface", ""},
		{"a form of another site", tcp, "POST", "https://lb1.example.net:9443/api/v1/reload", []string{"Authorization", "Bearer " + secret, "Origin", "https://evil.example", "Content-Type", "application/json"}, 403, "a page of another site", ""},
		{"a form of another site, through a tunnel", socket, "POST", "http://localhost:8080/api/v1/reload", []string{"Origin", "https://evil.example", "Content-Type", "text/plain"}, 403, "a page of another site", ""},
		{"a script of another site", socket, "GET", "http://localhost:8080/api/v1/status", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403, "a page of another site", ""},
		{"a form without an origin", socket, "POST", "http://localhost:8080/api/v1/reload", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "Content-Type: application/json", ""},
		{"the owner", tcp, "GET", "https://lb1.example.net:9443/api/v1/status", []string{"Authorization", "Bearer " + secret}, 200, "web4", ""},
		{"the page, before it has the token", tcp, "GET", "https://lb1.example.net:9443/", nil, 200, "<title>l4lb</title>", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, c.url, strings.NewReader(""))
		require.NoError(t, err)
		for i := 0; i < len(c.header); i += 2 {
			req.Header.Set(c.header[i], c.header[i+1])
		}
		resp, err := c.by.Do(req)
		require.NoError(t, err, c.name)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, c.code, resp.StatusCode, "%s: %s", c.name, b)
		require.Contains(t, string(b), c.says, c.name)
		require.Equal(t, c.header1, resp.Header.Get("WWW-Authenticate"), c.name)
		require.Empty(t, resp.Header.Get("Access-Control-Allow-Origin"), c.name)
		require.Equal(t, "DENY", resp.Header.Get("X-Frame-Options"), c.name)
	}
	require.Equal(t, refused, p.status().Config.Reloads, "nobody reloaded it")
	require.GreaterOrEqual(t, bytes.Count([]byte(p.log.String()), []byte("admin request refused")), 9)
}
