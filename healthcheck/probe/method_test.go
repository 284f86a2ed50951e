package probe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

func TestForEveryMethod(t *testing.T) {
	n := 0
	for m := healthcheck.Method(1); ; m++ {
		if _, err := m.MarshalText(); err != nil {
			break
		}
		p, ok := probe.For(m)
		require.True(t, ok, "%v", m)
		require.NotNil(t, p)
		n++
	}
	require.Greater(t, n, 20)
	_, ok := probe.For(healthcheck.NoMethod)
	require.False(t, ok)
	_, ok = probe.For(255)
	require.False(t, ok)
}
