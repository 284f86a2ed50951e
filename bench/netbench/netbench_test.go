package main

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func TestMain(m *testing.M) {
	if !part(os.Args[1:]) { // this program is the balancer and the clients, too
		os.Exit(m.Run())
	}
}

// TestTable measures a little of everything that needs no peer's build, in both families, and reads the table.
func TestTable(t *testing.T) {
	testenv.NeedNetns(t)
	testenv.NeedServers(t, "nginx", "iperf3", "wrk", "haproxy", "nft")
	o, err := parse([]string{"-each", "1s", "-rounds", "1", "-modes", "nftables,haproxy,tun,afpacket", "-measures", "conns,memory", "-sessions", "2000"})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), o, &out))
	t.Logf("\n%s", &out)
	for _, r := range o.rows() {
		m := regexp.MustCompile(`(?m)^\s*` + r.String() + `\s+([0-9.]+)\s+[0-9.]+\s+([0-9.]+|-)`).FindSubmatch(out.Bytes())
		require.NotNil(t, m, r)
		conns, err := strconv.ParseFloat(string(m[1]), 64)
		require.NoError(t, err)
		require.Greater(t, conns, 10.0, r)
		if r.mode.name == "nftables" {
			require.Equal(t, "-", string(m[2]))
			continue
		}
		mb, err := strconv.ParseFloat(string(m[2]), 64)
		require.NoError(t, err)
		require.Greater(t, mb, 1.0, r)
	}
	require.NotContains(t, out.String(), "not measured")
}

// TestFlags: what cannot be is refused, all at once.
func TestFlags(t *testing.T) {
	_, err := parse([]string{"-modes", "x", "-measures", "y", "-families", "5", "-rounds", "0", "-each", "1ms", "-base", "z", "-pace", "-1", "-sessions", "0"})
	for _, s := range []string{"-modes", "-measures", "-families", "-rounds", "-each", "-base", "-pace", "-sessions"} {
		require.ErrorContains(t, err, s+": ")
	}
}
