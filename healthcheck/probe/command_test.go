package probe_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	file := filepath.Join(t.TempDir(), "late")
	start := time.Now()
	res := probe.Command{Path: "sh", Args: []string{"-c", "echo started; (sleep 1; touch " + file + ") & sleep 60"}}.
		Probe(within(t, 200*time.Millisecond), target)
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.EqualError(t, res.Err, `command: sh: timed out after "started"`)
	require.Less(t, time.Since(start), 20*time.Second)
	time.Sleep(1200 * time.Millisecond)
	_, err := os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist, "what the program started goes on")
}
