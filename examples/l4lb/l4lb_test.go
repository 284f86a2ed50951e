package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/cli"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "l4lb.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func invoke(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = program().Run(context.Background(), args, cli.IO{Out: &o, Err: &e})
	return status, o.String(), e.String()
}

func TestExampleFilesAreRight(t *testing.T) {
	_, names, _ := invoke(t, "example", "-names")
	require.Equal(t, "dsr\nfirst\ntls\n", names)
	for _, c := range []struct{ name, counts, dst, want string }{
		{"first", "1 services, 1 farms, 2 nodes", "10.77.0.80:80", "web/web"},
		{"tls", "1 services, 2 farms, 4 nodes", "192.0.2.80:443", "tcp"},
		{"dsr", "4 services, 2 farms, 5 nodes", "192.0.2.80:443", "web/web"},
	} {
		status, text, _ := invoke(t, "example", c.name)
		require.Zero(t, status)
		name := write(t, text)
		status, out, errs := invoke(t, "check", name)
		require.Zerof(t, status, "%s", errs)
		require.Contains(t, out, "right: "+c.counts)
		status, out, errs = invoke(t, "explain", name, "-src", "198.51.100.7:4000", "-dst", c.dst)
		require.Zerof(t, status, "%s", errs)
		require.Contains(t, out, c.want)
		_, out, _ = invoke(t, "explain", "-src", "198.51.100.7:4000", "-dst", strings.Split(c.dst, ":")[0]+":8", name)
		require.Contains(t, out, "no-policy")
		status, out, _ = invoke(t, "diff", name, name)
		require.Zero(t, status)
		require.Equal(t, "nothing changes\n", out)
	}
	status, text, _ := invoke(t, "example")
	require.Zero(t, status)
	first, err := exampleFile("first")
	require.NoError(t, err)
	require.Equal(t, first, text)
	status, _, errs := invoke(t, "example", "best")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "want one of dsr, first, tls")
}

func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "Usage:"},
		{[]string{"dance"}, `"dance": want diff, drain, disable, run, check`},
		{[]string{"check"}, "want FILE"},
		{[]string{"check", "a", "b"}, `"b": want FILE only`},
		{[]string{"explain", "x", "-src", "1.2.3.4", "-dst", "1.2.3.4:5"}, `-src "1.2.3.4": want an address and port`},
		{[]string{"explain", "x", "-src", "1.2.3.4:1", "-dst", "1.2.3.4:5", "-proto", "any"}, `-proto "any": want tcp`},
		{[]string{"run", "-bogus", "x"}, "bogus"},
		{[]string{"top", "-n", "-1"}, "-n -1: want a number of rounds, or 0 to go on"},
		{[]string{"trace", "-n", "-1"}, "-n -1: want a number of packets, or 0 to go on"},
		{[]string{"capture", "-n", "0"}, "-n 0 -snaplen 0: want a number of packets from 1 on"},
		{[]string{"capture", "-snaplen", "-1"}, "-snaplen -1: want a number of packets from 1 on, and of octets, or 0 for all"},
		{[]string{"sessions", "-limit", "-1"}, "-limit -1: want 0 or more"},
	} {
		status, _, errs := invoke(t, c.args...)
		require.Equal(t, 2, status, c.args)
		require.Contains(t, errs, c.want)
	}
	// An earlier capture is not lost where nobody captures.
	file := filepath.Join(t.TempDir(), "c.pcapng")
	require.NoError(t, os.WriteFile(file, []byte("earlier"), 0o600))
	status, _, errs := invoke(t, "capture", "-socket", "/no/such/socket", "-w", file)
	require.Equal(t, 1, status)
	require.Contains(t, errs, "no running l4lb at /no/such/socket")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "earlier", string(text))

	status, _, errs = invoke(t, "check", "/no/such/file")
	require.Equal(t, 1, status)
	require.Contains(t, errs, "/no/such/file")
	status, out, _ := invoke(t, "-h")
	require.Zero(t, status)
	require.Contains(t, out, "l4lb explain")
}
