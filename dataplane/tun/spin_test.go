package tun

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpinnerAdapts(t *testing.T) {
	s := spinner{most: 200}
	require.Zero(t, s.budget, "a new device does not spin")
	for range 10 {
		s.slept(20 * time.Microsecond)
	}
	require.Equal(t, 200, s.budget, "short sleeps are worth spinning for")
	s.hit(10)
	require.Equal(t, 200, s.budget)
	for range 10 {
		s.slept(time.Millisecond)
	}
	require.Zero(t, s.budget, "spinning in vain stops")
	s.hit(0)
	require.Zero(t, s.budget)
	s.slept(time.Microsecond)
	s.hit(s.budget)
	require.Equal(t, 24, s.budget, "a hit near the end of the budget asks for more")

	never := spinner{}
	never.slept(0)
	require.Zero(t, never.budget)
}
