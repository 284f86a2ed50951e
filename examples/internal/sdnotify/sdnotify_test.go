package sdnotify

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func TestSend(t *testing.T) {
	require.NoError(t, Notifier{}.Send(Ready), "nobody listens")
	require.ErrorContains(t, Notifier{"vsock:1"}.Send(Ready), "want an absolute path")
	if runtime.GOOS != "linux" {
		t.Skip("unixgram sockets of a service manager are Linux's")
	}
	for _, name := range []string{filepath.Join(testenv.SocketDir(t), "notify"), "@lbprim-sdnotify-" + strconv.Itoa(os.Getpid())} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		t.Setenv("NOTIFY_SOCKET", name)
		require.NoError(t, New().Send(Reloading(), "STATUS=fine"))
		require.NoError(t, l.SetReadDeadline(time.Now().Add(10*time.Second)))
		b := make([]byte, 1000)
		n, err := l.Read(b)
		require.NoError(t, err)
		require.Regexp(t, `^RELOADING=1\nMONOTONIC_USEC=\d+\nSTATUS=fine$`, string(b[:n]))
	}
}

func TestInterval(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "")
	require.Zero(t, Interval())
	t.Setenv("WATCHDOG_USEC", "30000000")
	require.Equal(t, 30*time.Second, Interval())
	t.Setenv("WATCHDOG_PID", "1")
	require.Zero(t, Interval(), "meant for another process")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	require.Equal(t, 30*time.Second, Interval())
}
