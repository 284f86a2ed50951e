package enum_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/enum"
)

type colour uint8

func TestNames(t *testing.T) {
	n := enum.Of[colour]("paint: colour", "", "red", "green")
	require.Equal(t, 3, n.Len())
	require.Equal(t, "red, green", n.List())
	require.Equal(t, "colour(0)", n.String(0))
	require.Equal(t, "colour(9)", n.String(9))
	for v := colour(1); v < 3; v++ {
		require.True(t, n.Known(v))
		b, err := n.Append([]byte("x "), v)
		require.NoError(t, err)
		require.Equal(t, "x "+n.String(v), string(b))
		var got colour
		require.NoError(t, n.Parse(&got, b[2:]))
		require.Equal(t, v, got)
	}
	for _, v := range []colour{0, 3, 255} {
		require.False(t, n.Known(v))
		b, err := n.Append([]byte("x"), v)
		require.ErrorContains(t, err, "paint: colour ")
		require.ErrorContains(t, err, ": want one of red, green")
		require.Equal(t, "x", string(b))
	}
	kept := colour(2)
	for _, text := range []string{"", "blue", "Red", "red "} {
		require.ErrorContains(t, n.Parse(&kept, []byte(text)), `"`+text+`": want one of red, green`)
		require.Equal(t, colour(2), kept)
	}
}

func TestWrapping(t *testing.T) {
	invalid := errors.New("paint: invalid")
	n := enum.Wrapping[colour](invalid, "colour", "red")
	err := n.Parse(new(colour), []byte("blue"))
	require.ErrorIs(t, err, invalid)
	require.EqualError(t, err, `paint: invalid: colour "blue": want one of red`)
}
