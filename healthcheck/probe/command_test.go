package probe_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

func TestCommand(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	sh := func(script string, args ...string) probe.Command {
		return probe.Command{Path: "sh", Args: append([]string{"-c", script, "sh"}, args...)}
	}
	plugin := sh("echo UNKNOWN; exit 3")
	plugin.InconclusiveStatus = []int{3}
	for _, row := range []struct {
		name   string
		prober probe.Command
		want   healthcheck.Verdict
		text   string // of the note or in the error
	}{
		{"passes", sh("echo all is well; echo more"), healthcheck.Pass, "all is well"},
		{"target", sh(`echo "$1 $2 $3 $LB_ADDR $LB_PORT $LB_TARGET"`, "{addr}", "{port}", "{target}"), healthcheck.Pass, "192.0.2.1 80 192.0.2.1:80 192.0.2.1 80 192.0.2.1:80"},
		{"fails", sh("echo disk full >&2; exit 2"), healthcheck.Fail, `command: sh: got "exit status 2: disk full", want exit status 0`},
		{"killed", sh("kill -9 $$"), healthcheck.Fail, "signal: killed"},
		{"inconclusive", plugin, healthcheck.Inconclusive, "command: sh: local: exit status 3: UNKNOWN"},
		{"no program", probe.Command{Path: "/nonexistent"}, healthcheck.Inconclusive, "no such file"},
		{"no program in the path", probe.Command{Path: "nosuchprogram"}, healthcheck.Inconclusive, "not found"},
		{"endless output", sh("yes | head -c 10000000; true"), healthcheck.Pass, "y"},
	} {
		t.Run(row.name, func(t *testing.T) {
			res := row.prober.Probe(within(t, 20*time.Second), target)
			require.Equal(t, row.want, res.Verdict, "%v", res.Err)
			if row.want == healthcheck.Pass {
				require.Equal(t, row.text, res.Note)
			} else {
				require.ErrorContains(t, res.Err, row.text)
			}
		})
	}
}

// TestCommandIsKilled has a program start another that would hold the pipe for long.
func TestCommandIsKilled(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "other")
	late := expiring{context.Background(), make(chan struct{})}
	other := 0
	go func() { // once the other one is there
		defer close(late.expired)
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			b, _ := os.ReadFile(file)
			if n, err := fmt.Sscanf(string(b), "%d\n", &other); n == 1 && err == nil {
				return
			}
		}
	}()
	res := probe.Command{Path: "sh", Args: []string{"-c", "echo started; sleep 60 & echo $! >" + file + "; wait"}}.Probe(late, target)
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.EqualError(t, res.Err, `command: sh: timed out after "started"`)
	gone(t, other)
}

// expiring is a context whose deadline comes when it is told to.
type expiring struct {
	context.Context
	expired chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.expired }

func (e expiring) Err() error {
	select {
	case <-e.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestCommandLeavesNothing has a program end before what it started.
func TestCommandLeavesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skip(err)
	}
	for _, script := range []string{"sleep 300 & echo $!", "sleep 300 >/dev/null 2>&1 & echo $!", "sleep 300 >/dev/null 2>&1 & echo $! >&2; exit 1"} {
		t.Run(script, func(t *testing.T) {
			res := probe.Command{Path: "sh", Args: []string{"-c", script}}.Probe(within(t, 20*time.Second), target)
			text := res.Note
			if res.Err != nil {
				_, text, _ = strings.Cut(res.Err.Error(), "status 1: ")
			}
			var other int
			_, err := fmt.Sscanf(text, "%d", &other)
			require.NoError(t, err, "%v", res)
			gone(t, other)
		})
	}
}

// gone waits until a process has ended. Nobody may have looked at what became of it.
func gone(t *testing.T, pid int) {
	t.Helper()
	require.Positive(t, pid)
	require.Eventually(t, func() bool {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && bytes.Contains(b, []byte(") Z ")) {
			return true
		}
		p, err := os.FindProcess(pid)
		return err != nil || p.Signal(syscall.Signal(0)) != nil
	}, 20*time.Second, time.Millisecond, "what the program started goes on")
}
