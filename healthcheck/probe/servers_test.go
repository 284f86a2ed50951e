//go:build linux

package probe_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

// server is a real server that a test started.
type server struct {
	cmd  *exec.Cmd
	log  *syncBuffer
	done chan struct{} // closed when the process has ended
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// launch starts a program in a process group of its own, and kills the group when the test ends.
func launch(t testing.TB, cmd *exec.Cmd) *server {
	t.Helper()
	s := &server{cmd: cmd, log: new(syncBuffer), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.WaitDelay = time.Second
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	require.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(s.kill)
	return s
}

func (s *server) signal(sig syscall.Signal) { _ = syscall.Kill(-s.cmd.Process.Pid, sig) }

// stop stops the process and what it started, and returns when each of their threads has: that takes a moment.
func (s *server) stop(t testing.TB) {
	t.Helper()
	s.signal(syscall.SIGSTOP)
	require.Eventually(t, func() bool {
		return !strings.ContainsFunc(s.states(), func(r rune) bool { return !strings.ContainsRune("TtZX", r) })
	}, startWait, 5*time.Millisecond)
}

// kill ends the process and what it started, and waits for them, so that nobody listens any more.
func (s *server) kill() {
	s.signal(syscall.SIGCONT)
	s.signal(syscall.SIGKILL)
	<-s.done
	for end := time.Now().Add(startWait); strings.Trim(s.states(), "ZX") != "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
}

// states are those of all threads of the process group, a letter each (proc_pid_stat(5)).
func (s *server) states() string {
	var all strings.Builder
	files, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name of the program may have blanks
		if len(f) > 2 && f[2] == strconv.Itoa(s.cmd.Process.Pid) {
			all.WriteString(f[0])
		}
	}
	return all.String()
}

// startWait bounds how long a real server may take until it answers.
const startWait = 90 * time.Second

// until probes until the server is up.
func (s *server) until(t testing.TB, p healthcheck.Prober, addr netip.AddrPort) {
	t.Helper()
	var res healthcheck.Result
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case <-s.done:
			t.Fatalf("%s ended: %v\n%s", s.cmd.Path, s.cmd.ProcessState, s.log)
		default:
		}
		if res = probeAt(p, addr, 10*time.Second); res.Verdict == healthcheck.Pass {
			return
		}
	}
	t.Fatalf("%s is not up after %v: %v\n%s", s.cmd.Path, startWait, res.Err, s.log)
}

func probeAt(p healthcheck.Prober, addr netip.AddrPort, d time.Duration) healthcheck.Result {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return p.Probe(ctx, addr)
}

func passes(t testing.TB, p healthcheck.Prober, addr netip.AddrPort) healthcheck.Result {
	t.Helper()
	res := probeAt(p, addr, 20*time.Second)
	require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
	if p, ok := inStarted(t, p); ok {
		res := probeAt(p, addr, 20*time.Second)
		require.Equal(t, healthcheck.Pass, res.Verdict, "started: %v", res.Err)
	}
	met(p, healthy)
	return res
}

// inStarted returns p as a Monitor would start it, if that is another way.
func inStarted(t testing.TB, p healthcheck.Prober) (healthcheck.Prober, bool) {
	tt, ok := t.(*testing.T)
	if _, starts := p.(healthcheck.Starter); !ok || !starts {
		return nil, false
	}
	return healthchecktest.Started(tt, p), true
}

func fails(t testing.TB, p healthcheck.Prober, addr netip.AddrPort, why string) {
	t.Helper()
	res := probeAt(p, addr, 20*time.Second)
	require.Equal(t, healthcheck.Fail, res.Verdict, "%s", res.Note)
	require.ErrorContains(t, res.Err, why)
	if p, ok := inStarted(t, p); ok {
		res := probeAt(p, addr, 20*time.Second)
		require.Equal(t, healthcheck.Fail, res.Verdict, "started: %s", res.Note)
		require.ErrorContains(t, res.Err, why)
	}
	met(p, why)
}

// short is a deadline that is expected to pass.
const short = 400 * time.Millisecond

// lifecycle takes a healthy server through what can happen to any: replies in single
// bytes, replies that drip past the deadline, a process that hangs, one that is gone.
func (s *server) lifecycle(t *testing.T, p healthcheck.Prober, addr netip.AddrPort) {
	t.Helper()
	if _, ok := p.(overUDP); !ok {
		passes(t, p, proxy(t, addr, 0))
		if _, one := p.(probe.Telnet); !one { // a single byte cannot drip
			res := probeAt(p, proxy(t, addr, 150*time.Millisecond), short)
			require.Equal(t, healthcheck.Fail, res.Verdict, "dripped past the deadline")
			require.ErrorIs(t, res.Err, os.ErrDeadlineExceeded)
			met(p, "drips past the deadline")
		}
	}
	s.stop(t)
	start := time.Now()
	res := probeAt(p, addr, short)
	require.Equal(t, healthcheck.Fail, res.Verdict, "hanging: %v", res.Err)
	require.Less(t, time.Since(start), 10*time.Second)
	met(p, "hangs")
	s.signal(syscall.SIGCONT)
	passes(t, p, addr)
	s.kill()
	fails(t, p, addr, "connection refused")
}

// overUDP is implemented by wrappers that mark a prober as one over UDP.
type overUDP interface{ udp() }

type udpProber struct{ healthcheck.Prober }

func (udpProber) udp() {}

// proxy passes a conversation on byte by byte.
func proxy(t testing.TB, to netip.AddrPort, every time.Duration) netip.AddrPort {
	return listen(t, "127.0.0.1:0", func(c net.Conn) {
		d, err := net.Dial("tcp", to.String())
		if err != nil {
			return
		}
		defer d.Close()
		go func() {
			io.Copy(d, c)
			d.Close()
		}()
		b := make([]byte, 4096)
		for {
			n, err := d.Read(b)
			for i := range n {
				if _, err := c.Write(b[i : i+1]); err != nil {
					return
				}
				time.Sleep(every)
			}
			if err != nil {
				return
			}
		}
	})
}

// v6 is the same port of the other loopback address, on which servers listen too.
func v6(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port()) }

// needRoot skips where a server has to be started by root.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("LBPRIM_SERVERS") == "require" {
			t.Fatal("this server has to be started by root, and LBPRIM_SERVERS=require")
		}
		t.Skip("this server has to be started by root (set LBPRIM_SERVERS=require to make this an error)")
	}
}

// asUser has a command run as another user, if there is one and we are root.
func asUser(t testing.TB, cmd *exec.Cmd, name string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		return cmd
	}
	u, err := user.Lookup(name)
	require.NoError(t, err)
	uid, err := strconv.Atoi(u.Uid)
	require.NoError(t, err)
	gid, err := strconv.Atoi(u.Gid)
	require.NoError(t, err)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return cmd
}

// openDir is a folder that every user may use.
func openDir(t testing.TB) string {
	t.Helper()
	dir := testenv.SocketDir(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

func write(t testing.TB, dir, name, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644))
	return path
}

// pemFiles writes a certificate and its key, and returns the names and a client's
// configuration that trusts it.
func pemFiles(t testing.TB, dir string, notAfter time.Time) (cert, key string, cfg *tls.Config) {
	t.Helper()
	c, pool := certificate(t, notAfter)
	der, err := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(t, err)
	name := fmt.Sprint(notAfter.Unix())
	cert = write(t, dir, name+".crt", "%s", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
	key = write(t, dir, name+".key", "%s", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	return cert, key, &tls.Config{RootCAs: pool}
}
