package dataplane

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever order segments come in, every byte is taken once and in order, either by its value or, where nobody will look at it, by its number.
func TestAssembler(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		stream := make([]byte, 1+rng.IntN(20000))
		for i := range stream {
			stream[i] = byte(rng.Uint32())
		}
		// Nobody looks at some stretches.
		var skips [][2]int
		for at := rng.IntN(3000); at < len(stream); {
			n := min(1+rng.IntN(6000), len(stream)-at)
			skips = append(skips, [2]int{at, at + n})
			at += n + 1 + rng.IntN(3000)
		}
		base := rng.Uint32()
		a := assembler{next: base}
		var got []byte // passed bytes are filled in
		skippable := func() int64 {
			for _, s := range skips {
				if s[0] <= len(got) && len(got) < s[1] {
					return int64(s[1] - len(got))
				}
			}
			return 0
		}
		take := func(b []byte) { got = append(got, b...) }
		pass := func(n int) {
			require.LessOrEqual(t, int64(n), skippable(), "seed %d: bytes that somebody wants to see", seed)
			got = append(got, stream[len(got):len(got)+n]...)
		}
		size := 1 + rng.IntN(1500)
		for rounds := 0; len(got) < len(stream); rounds++ {
			require.Less(t, rounds, 100, "seed %d: %d of %d", seed, len(got), len(stream))
			order := rng.Perm((len(stream) + size - 1) / size)
			for _, i := range order {
				if rng.IntN(4) == 0 {
					continue // lost
				}
				from := max(0, i*size-rng.IntN(50))
				to := min(len(stream), (i+1)*size+rng.IntN(50))
				room := a.room(base+uint32(from), to-from, skippable())
				before := len(got)
				a.add(base+uint32(from), stream[from:to], skippable(), take, pass)
				if !room {
					require.Equal(t, before, len(got), "what there is no room for is not taken")
				}
				require.LessOrEqual(t, a.bytes, mostAhead)
				require.LessOrEqual(t, len(a.ahead), mostPieces)
				require.Equal(t, base+uint32(len(got)), a.next)
			}
		}
		require.True(t, bytes.Equal(stream, got), "seed %d", seed)
	}
}

// A segment is lost at the beginning of a large window: of a body with a length, what follows is not dropped, however much it is, and none
// of it is kept.
func TestAssemblerBehindAHole(t *testing.T) {
	a := assembler{next: 100}
	body := int64(64 << 20)
	segment := make([]byte, 1448)
	seq, end := uint32(100+len(segment)), uint32(100+48<<20)
	for ; seq < end; seq += uint32(len(segment)) {
		require.True(t, a.room(seq, len(segment), body))
		a.add(seq, segment, body, nil, nil)
	}
	require.Len(t, a.ahead, 1)
	require.Zero(t, a.bytes)
	took, passed := 0, 0
	a.add(100, segment, body, func(b []byte) { took += len(b) }, func(n int) { passed += n })
	require.Equal(t, len(segment), took)
	require.Equal(t, seq, a.next)
	require.EqualValues(t, seq-100, took+passed)
	// What is looked at is kept within bounds, and the rest refused, for the sender to send it again.
	a = assembler{next: 100}
	n := 0
	for seq := uint32(1548); a.room(seq, len(segment), 0); seq += uint32(len(segment)) {
		a.add(seq, segment, 0, nil, nil)
		n++
	}
	require.Equal(t, mostAhead/len(segment), n)
}
