//go:build linux

package probe_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/internal/testenv"
)

// inetd serves a program that talks over its standard input and output, one process a
// connection. With a nil command connections are made and nothing answers.
func inetd(t testing.TB, command func() *exec.Cmd) (addr netip.AddrPort, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f, err := c.(*net.TCPConn).File()
			c.Close()
			if err != nil {
				continue
			}
			go serveInetd(f, command)
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String()), func() { l.Close() }
}

func serveInetd(f *os.File, command func() *exec.Cmd) {
	defer f.Close()
	if command == nil {
		f.Read(make([]byte, 1)) // until the prober goes
		return
	}
	cmd := command()
	cmd.Stdin, cmd.Stdout = f, f
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// That is at the death of the thread, and those of namespaces die (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = cmd.Run()
}

// inetdLifecycle is lifecycle for a server that inetd starts.
func inetdLifecycle(t *testing.T, p healthcheck.Prober, command func() *exec.Cmd) {
	t.Helper()
	addr, stop := inetd(t, command)
	passes(t, p, addr)
	passes(t, p, proxy(t, addr, 0))
	stop()
	fails(t, p, addr, "connection refused")
	hanging, _ := inetd(t, nil)
	res := probeAt(p, hanging, short)
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.ErrorIs(t, res.Err, os.ErrDeadlineExceeded)
	met(p, "hangs")
}

func TestServerTelnet(t *testing.T) {
	t.Parallel()
	bin := testenv.NeedServers(t, "telnetd")[0]
	needRoot(t)
	inetdLifecycle(t, probe.Telnet{}, func() *exec.Cmd { return exec.Command(bin) })
	wrong, _ := inetd(t, func() *exec.Cmd { return exec.Command("echo", "login:") })
	fails(t, probe.Telnet{}, wrong, `telnet: negotiation: got "l", want IAC`)
}

func TestServerNNTP(t *testing.T) {
	t.Parallel()
	bins := testenv.NeedServers(t, "leafnode", "unshare", "setpriv")
	needRoot(t)
	// It wants a name of its own in the one configuration file that it reads.
	dir := openDir(t)
	conf := write(t, dir, "config", "server = news.invalid\nexpire = 20\nhostname = news.lbprim.net\n")
	leafnode := func(prepare string) func() *exec.Cmd {
		return func() *exec.Cmd {
			return exec.Command(bins[1], "--mount", "sh", "-c", prepare+`exec "$1" --reuid=news --regid=news --clear-groups "$2"`,
				"sh", bins[2], bins[0])
		}
	}
	healthy := leafnode("mount --bind " + conf + " /etc/news/leafnode/config && ")
	inetdLifecycle(t, probe.NNTP{}, healthy)
	write(t, dir, "config", "server = news.invalid\nexpire = 20\nhostname = localhost.localdomain\n")
	refusing, _ := inetd(t, healthy)
	fails(t, probe.NNTP{}, refusing, `nntp: greeting: got "503 `)
}
