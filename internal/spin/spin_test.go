package spin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpinnerAdapts(t *testing.T) {
	s := New(200)
	require.False(t, s.Again(1), "a new device does not spin")
	for range 10 {
		s.Slept(20 * time.Microsecond)
	}
	require.True(t, s.Again(200), "short sleeps are worth spinning for")
	require.False(t, s.Again(201))
	s.Hit(10)
	require.Equal(t, 200, s.budget)
	for range 10 {
		s.Slept(time.Millisecond)
	}
	require.Zero(t, s.budget, "spinning in vain stops")
	s.Hit(0)
	require.Zero(t, s.budget)
	s.Slept(time.Microsecond)
	s.Hit(s.budget)
	require.Equal(t, 24, s.budget, "a hit near the end of the budget asks for more")

	for _, never := range []Spinner{{}, New(-1)} {
		never.Slept(0)
		require.Zero(t, never.budget)
		require.True(t, never.Again(0))
	}
}
