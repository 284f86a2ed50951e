package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFlags(t *testing.T) {
	o, err := parseFlags(nil, nil)
	require.NoError(t, err)
	require.Equal(t, options{duration: defaultDuration, seed: 1}, o)
	o, err = parseFlags([]string{"-duration", "9s", "-json", "-seed", "0x7", "-memory"}, nil)
	require.NoError(t, err)
	require.Equal(t, options{duration: 9 * time.Second, json: true, memory: true, seed: 7}, o)
}

// TestBadFlags: one line that names the flag, its value and what is valid; exit status 2.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"-duration", "soon"}, []string{"-duration", `"soon"`, "6s to 1h"}},
		{[]string{"-duration", "1s"}, []string{"-duration", "1s", "6s to 1h"}},
		{[]string{"-duration=-5s"}, []string{"-duration", "-5s", "6s to 1h"}},
		{[]string{"-seed", "-1"}, []string{"-seed", `"-1"`, "0 to 2^64-1"}},
		{[]string{"-json=maybe"}, []string{"-json", `"maybe"`, "valid"}},
		{[]string{"-colour"}, []string{"-colour", "-duration", "-seed"}},
		{[]string{"now"}, []string{`"now"`, "flags"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, exitUsage, run(c.args, &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "one line: %s", stderr.String())
			for _, want := range c.want {
				require.Contains(t, stderr.String(), want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitOK, run([]string{"-h"}, &stdout, &stderr))
	require.Empty(t, stderr.String())
	for _, want := range []string{"-duration", "-json", "-seed", "-memory", "-h", "exit status"} {
		require.Contains(t, stdout.String(), want)
	}
}
