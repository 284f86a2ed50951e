package probe_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

func mayRaw(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		if os.Getenv("LBPRIM_NETNS") == "require" {
			t.Fatalf("no raw socket: %v", err)
		}
		t.Skipf("no raw socket: %v", err)
	}
	unix.Close(fd)
}

func TestTCPHalfOpen(t *testing.T) {
	mayRaw(t)
	for _, host := range loopbacks {
		t.Run(host, func(t *testing.T) {
			accepted := make(chan struct{}, 10)
			addr := listen(t, net.JoinHostPort(host, "0"), func(net.Conn) { accepted <- struct{}{} })
			for _, p := range both(t, probe.TCPHalfOpen{}) {
				for range 40 { // more than there are ports shared
					res := p.Probe(within(t, patience), addr)
					require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
					require.Empty(t, res.Note)
				}
			}
			select {
			case <-accepted:
				t.Fatal("the handshake was completed")
			case <-time.After(100 * time.Millisecond):
			}
			for _, p := range both(t, probe.TCPHalfOpen{}) {
				res := p.Probe(within(t, patience), closedPort(t, host))
				require.Equal(t, healthcheck.Fail, res.Verdict)
				require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
				require.EqualError(t, res.Err, "tcp half-open: SYN: connection refused")
			}
			src := probe.Socket{Source: netip.MustParseAddr(host), DSCP: 10}
			for _, p := range both(t, probe.TCPHalfOpen{Socket: src}) {
				res := p.Probe(within(t, patience), addr)
				require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			}
		})
	}
	t.Run("silence", func(t *testing.T) {
		// A listener whose queue is full drops further SYNs.
		addr, _ := fullListener(t)
		for _, p := range both(t, probe.TCPHalfOpen{Resend: 100 * time.Millisecond}) {
			start := time.Now()
			res := p.Probe(within(t, 400*time.Millisecond), addr)
			require.Equal(t, healthcheck.Fail, res.Verdict)
			require.EqualError(t, res.Err, "tcp half-open: SYN: timed out without an answer")
			require.Less(t, time.Since(start), 20*time.Second)
			require.GreaterOrEqual(t, time.Since(start), 400*time.Millisecond)
		}
	})
}

// fullListener never accepts, and its queue is full.
func fullListener(t *testing.T) (netip.AddrPort, int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(fd, 0))
	sa, err := unix.Getsockname(fd)
	require.NoError(t, err)
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*unix.SockaddrInet4).Port))
	c, err := net.Dial("tcp", addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	// Of a listener, these are how many wait and how many may before others are dropped.
	require.Eventually(t, func() bool {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.Unacked > info.Sacked
	}, 20*time.Second, time.Millisecond, "the queue of a listener does not fill")
	return addr, fd
}

// TestWithoutPrivilege runs some tests of this package again as an ordinary user.
func TestWithoutPrivilege(t *testing.T) {
	if os.Getenv("PROBE_UNPRIVILEGED") != "" {
		unprivileged(t)
		return
	}
	if os.Geteuid() != 0 {
		unprivileged(t)
		return
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	// The binary lies in a folder that the user may not enter.
	bin := t.TempDir() + "/probe.test"
	b, err := os.ReadFile(exe)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bin, b, 0o755))
	for dir := bin; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^TestWithoutPrivilege$", "-test.v")
	cmd.Env = []string{"PROBE_UNPRIVILEGED=1", "TMPDIR=/tmp"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("cannot change the user: %v", err)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS")
}

func unprivileged(t *testing.T) {
	for _, host := range loopbacks {
		addr := listen(t, net.JoinHostPort(host, "0"), func(net.Conn) {})
		for _, p := range both(t, probe.TCPHalfOpen{}) {
			res := p.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.Equal(t, "no raw socket, so connected and reset", res.Note)
		}
		res := probe.TCPHalfOpen{}.Probe(within(t, patience), closedPort(t, host))
		require.Equal(t, healthcheck.Fail, res.Verdict)
		require.EqualError(t, res.Err, "tcp half-open: connect: connection refused")

		res = probe.ICMP{}.Probe(within(t, patience), addr)
		if res.Verdict == healthcheck.Inconclusive { // as ping_group_range says
			require.ErrorIs(t, res.Err, os.ErrPermission)
			require.ErrorIs(t, res.Err, healthcheck.ErrLocal)
		} else {
			require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
			require.Equal(t, "datagram socket", res.Note)
		}
		for _, p := range both(t, probe.TCP{Dialer: probe.Socket{Mark: 7}}) {
			res = p.Probe(within(t, patience), addr)
			require.Equal(t, healthcheck.Inconclusive, res.Verdict)
			require.ErrorIs(t, res.Err, os.ErrPermission)
		}
	}
}
