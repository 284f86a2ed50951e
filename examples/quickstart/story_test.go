package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/lab"
	"github.com/lbprim/lbprim/internal/testenv"
)

// TestMain lets the test binary be what the program would be: its own child in a user namespace.
func TestMain(m *testing.M) {
	if args := os.Getenv("QUICKSTART_TEST_ARGS"); args != "" {
		os.Exit(run(strings.Fields(args), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// tell plays the story in memory and in no time at all.
func tell(t *testing.T, broken sabotage) (r *report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opt := options{duration: shortest, seed: 3}
		broken.slower = 4
		l, err := lab.Memory(lab.Config{Clients: clientAddrs, Servers: 7, VIPs: []netip.Addr{vip(false), vip(true)}, Seed: opt.seed})
		require.NoError(t, err)
		defer l.Close()
		var out bytes.Buffer
		s := &story{opt: opt, mode: "test", lab: l, show: &lines{w: &out}, sabotage: broken}
		r, err = s.run(context.Background())
		require.NoError(t, err, out.String())
		r.text(&out)
		t.Log(out.String())
	})
	return r
}

func failed(r *report) (claims []string) {
	for _, c := range r.Claims {
		if !c.Happened {
			claims = append(claims, c.Claim)
		}
	}
	return claims
}

func TestStory(t *testing.T) {
	r := tell(t, sabotage{})
	require.Empty(t, failed(r))
	require.True(t, r.Verified)
	require.Greater(t, r.Requests, 300)
	require.Positive(t, r.LargestTables.Sessions)
	require.Contains(t, r.Explanation, "web")
}

// TestLiesAreFound breaks the story in one way after another: each must be noticed, and
// only what is broken.
func TestLiesAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		broken sabotage
		want   []string // parts of the claims that must fail
	}{
		"wrong weights":             {sabotage{weights: true}, []string{"the web servers' shares"}},
		"the server does not die":   {sabotage{immortal: true}, []string{"death", "other servers"}},
		"it does not return":        {sabotage{lazarus: true}, []string{"its return was noticed", "served again"}},
		"no drain":                  {sabotage{undrained: true}, []string{"no new one"}},
		"the drain cuts":            {sabotage{cut: true}, []string{"lost no connection", "no request failed"}},
		"customers are forgotten":   {sabotage{forgetful: true}, []string{"kept its server"}},
		"pages with wrong bytes":    {sabotage{lying: true}, []string{"no request failed"}},
		"one echo server is not it": {sabotage{masked: true}, []string{"UDP"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tell(t, c.broken)
			require.False(t, r.Verified)
			for _, want := range c.want {
				require.Condition(t, func() bool {
					return strings.Contains(strings.Join(failed(r), "\n"), want)
				}, "%q should be among the failed claims: %q", want, failed(r))
			}
		})
	}
}

// play runs the whole program as a user would.
func play(t *testing.T, args ...string) *report {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := run(append(args, "-json", "-duration", shortest.String()), &stdout, &stderr)
	require.Equal(t, exitOK, status, "%s%s", stdout.String(), stderr.String())
	var r report
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &r))
	require.True(t, r.Verified)
	require.Less(t, r.Seconds, 60.0) // of its own it takes 8, on a machine that has the time
	return &r
}

func TestProgramInMemory(t *testing.T) {
	r := play(t, "-memory")
	require.Contains(t, r.Mode, "in memory")
	require.Contains(t, r.Mode, "-memory")
}

func TestProgramOnTheKernel(t *testing.T) {
	testenv.NeedNetns(t)
	r := play(t)
	require.Contains(t, r.Mode, "TUN device")
}

// TestInterrupt: Ctrl-C ends the program soon, and cleanly.
func TestInterrupt(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "QUICKSTART_TEST_ARGS=-memory -duration 1m")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	in := bufio.NewReader(out)
	for line := ""; !strings.Contains(line, "clients begin"); {
		line, err = in.ReadString('\n')
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, in)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, exitInterrupted, exit.ExitCode())
}
