package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// CI machines are slow, and everything waits for conditions: the time is only what makes a failure end.
func patient(o options) options {
	o.packets, o.firstAnswer, o.patience = 2, time.Second, 3*time.Minute
	return o
}

func TestStoryInNamespaces(t *testing.T) {
	testenv.NeedNetns(t)
	var out bytes.Buffer
	untrue, err := tell(t.Context(), patient(options{}), &out)
	require.NoErrorf(t, err, "%s", &out)
	require.Emptyf(t, untrue, "%s", &out)
	require.Equal(t, phases, strings.Count(out.String(), "every balancer knows after"))
	require.Contains(t, out.String(), "pair-down")
}

// Balancers that ask nobody send the two directions of a connection different ways, and the verification notices.
func TestVerificationNotices(t *testing.T) {
	testenv.NeedNetns(t)
	var out bytes.Buffer
	untrue, err := tell(t.Context(), patient(options{lonely: true}), &out)
	require.NoErrorf(t, err, "%s", &out)
	require.Contains(t, strings.Join(untrue, "\n"), "went through a node, in both directions")
}

func TestPackets(t *testing.T) {
	for _, f := range newFlows(0) {
		for _, p := range []packet{
			{src: f.src, dst: f.dst, tcp: true, syn: true, seq: 1}, {src: f.src, dst: f.dst, tcp: true, rst: true, seq: 7}, {src: f.dst, dst: f.src, seq: 1 << 31},
		} {
			b, err := p.bytes()
			require.NoError(t, err)
			q, err := parse(b)
			require.NoError(t, err)
			require.Equal(t, p, q)
			for n := range b {
				_, err := parse(b[:n])
				require.Error(t, err, "%d bytes", n)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-h"}, 0, "What it shows:"},
		{[]string{"-packets", "1"}, 2, "-packets 1: want 2 to 1000"},
		{[]string{"now"}, 2, `"now": want no arguments`},
		{[]string{"-bogus"}, 2, "bogus"},
	} {
		var out bytes.Buffer
		require.Equal(t, c.status, run(t.Context(), c.args, &out, &out))
		require.Contains(t, out.String(), c.want)
	}
}
