package dataplane

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSlabTwin: records are given out once, keep their content, and become as many or as few as the limit says, at random and as in a
// plain map.
func TestSlabTwin(t *testing.T) {
	const first, most = 40, 600
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, err := newSlab(first, most)
		require.NoError(t, err)
		require.Len(t, s.recs, most)
		if seed%2 == 0 {
			s.prepare()
		}
		used := map[uint32]uint32{} // the content of those given out
		limbo, limit := 0, first
		for i := range uint32(4000) {
			switch n := r.IntN(100); {
			case n < 60:
				over := r.IntN(4) == 0
				at, ok := s.alloc(over)
				if !ok {
					require.GreaterOrEqual(t, len(used)+limbo, limit, "none is refused that there is room for")
					break
				}
				if !over {
					require.Less(t, len(used)+limbo, limit)
				}
				require.NotContains(t, used, at)
				s.recs[at].nodeNo, used[at] = i, i
			case n < 90:
				if len(used) > 0 {
					keys := slices.Sorted(maps.Keys(used))
					at := keys[r.IntN(len(keys))]
					delete(used, at)
					s.giveBack(at)
					limbo++
				}
			case n < 94:
				s.recycle(func() {})
				limbo = 0
			case n < 97:
				s.settle()
			case n == 97:
				limit = 1 + r.IntN(most)
				require.NoError(t, s.setLimit(limit))
			case n == 98: // most go, as after a rush
				for at := range used {
					if r.IntN(10) > 0 {
						delete(used, at)
						s.giveBack(at)
						limbo++
					}
				}
			default:
				select {
				case <-s.low:
					s.prepare()
				default:
				}
			}
			require.Equal(t, len(used), s.inUse())
		}
		for at, content := range used {
			require.Equal(t, content, s.recs[at].nodeNo)
		}
		require.ErrorContains(t, s.setLimit(most+1), "address space for 600 records was set aside at the start, 601 are wanted")
		s.forget()
	}
}

// TestSlabGivesBack: once all are gone that lie beyond a lower limit, there are none.
func TestSlabGivesBack(t *testing.T) {
	s, err := newSlab(3*settleStep, 3*settleStep)
	require.NoError(t, err)
	defer func() { s.forget() }()
	for range 3 * settleStep {
		_, ok := s.alloc(false)
		require.True(t, ok)
	}
	require.NoError(t, s.setLimit(100))
	_, ok := s.alloc(false)
	require.False(t, ok)
	for at := range uint32(3 * settleStep) {
		if at != 50 && at != 3*settleStep-1 {
			s.giveBack(at)
		}
	}
	s.recycle(func() {})
	s.settle()
	require.EqualValues(t, 3*settleStep, s.fresh, "the last one is in use")
	require.Len(t, s.spare, 3*settleStep-101)
	at, ok := s.alloc(false)
	require.True(t, ok)
	require.Less(t, at, uint32(100))
	s.giveBack(3*settleStep - 1)
	s.recycle(func() {})
	s.settle()
	require.EqualValues(t, 100, s.fresh)
	require.Empty(t, s.spare)
	require.Equal(t, 2, s.inUse())
	require.NoError(t, s.setLimit(200))
	for range 198 {
		at, ok := s.alloc(false)
		require.True(t, ok)
		s.recs[at].nodeNo = 7
	}
	_, ok = s.alloc(true)
	require.False(t, ok)
}
