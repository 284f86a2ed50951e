//go:build unix

package conf

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What happens between the making of a Watcher and its run, the reading of the file among it, is not missed, and SIGHUP ends nobody.
func TestWatcherMissesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, []byte("1"), 0o600))
	w := NewWatcher(file)
	defer w.Close()
	require.NoError(t, os.WriteFile(file, []byte("12"), 0o600))
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan string)
	go func() {
		defer close(done)
		w.Run(ctx, func() {
			b, _ := os.ReadFile(file) //nolint:gosec // the test's own
			select {
			case changed <- string(b):
			case <-ctx.Done():
			}
		})
	}()
	next := func(want string) {
		t.Helper()
		select {
		case got := <-changed:
			require.Equal(t, want, got)
		case <-time.After(30 * time.Second):
			require.FailNow(t, "nothing is noticed")
		}
	}
	next("12")
	// A signal before the file has changed, and a rename of one as long.
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	next("12")
	require.NoError(t, os.WriteFile(file+".new", []byte("34"), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	next("34")
	// A file that is gone for a moment is being written.
	require.NoError(t, os.Remove(file))
	select {
	case got := <-changed:
		require.FailNow(t, "it is read while it is gone", got)
	case <-time.After(1500 * time.Millisecond):
	}
	require.NoError(t, os.WriteFile(file+".new", []byte("5"), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	next("5")
	cancel()
	<-done
}

// A SIGHUP that comes before Run waits for it.
func TestWatcherKeepsTheSignal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, []byte("1"), 0o600))
	w := NewWatcher(file)
	defer w.Close()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Eventually(t, func() bool { return len(w.hup) == 1 }, 30*time.Second, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.Run(ctx, cancel)
}
