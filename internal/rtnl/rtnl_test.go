//go:build linux

package rtnl

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestIndex(t *testing.T) {
	i, err := Index("lo")
	require.NoError(t, err)
	require.Positive(t, i)
	_, err = Index("no-such-link")
	require.ErrorIs(t, err, ErrNoLink)
	require.ErrorContains(t, err, `"no-such-link"`)
}

// TestErrorsKeepTheirCause: the kernel's number can be asked for, and its words are there.
func TestErrorsKeepTheirCause(t *testing.T) {
	err := SetMTU(1<<30, 1500)
	require.True(t, isAny(err, unix.ENODEV, unix.EPERM), "%v", err)
	err = ReplaceRoute(Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Index: 1 << 30})
	require.True(t, isAny(err, unix.ENODEV, unix.EPERM), "%v", err)
	require.ErrorContains(t, err, "192.0.2.0/24")
}

func isAny(err error, codes ...unix.Errno) bool {
	return slices.ContainsFunc(codes, func(c unix.Errno) bool { return errors.Is(err, c) })
}

func TestMessage(t *testing.T) {
	m := newMessage(unix.RTM_NEWLINK, 0, 1, 2, 3)
	require.Len(t, m.b, headerLen+4, "padded")
	m.nest(7, func() { m.attr(8, []byte("abcde")) })
	attrs := m.b[headerLen+4:]
	require.Len(t, attrs, 4+4+8)
	require.EqualValues(t, len(attrs), binary.NativeEndian.Uint16(attrs))
	outer, ok := find(attrs, 7)
	require.True(t, ok)
	inner, ok := find(outer, 8)
	require.True(t, ok)
	require.Equal(t, "abcde", string(inner))
	_, ok = find(outer, 9)
	require.False(t, ok)
}

// TestMalformedAnswers: what the kernel never sends must not crash the program either.
func TestMalformedAnswers(t *testing.T) {
	for _, b := range [][]byte{{1}, {3, 0, 0, 0}, {200, 0, 1, 0}, {4, 0, 1}, {5, 0, 1, 0, 9}} {
		_, _ = find(b, 1)
	}
	require.Error(t, acknowledged([]byte{0, 0, 0, 0}, 0))
	require.NoError(t, acknowledged(make([]byte, 4+headerLen), 0))
	bad := make([]byte, 4+headerLen)
	code := -int32(unix.EEXIST)
	binary.NativeEndian.PutUint32(bad, uint32(code))
	require.ErrorIs(t, acknowledged(bad, unix.NLM_F_ACK_TLVS), unix.EEXIST)
	binary.NativeEndian.PutUint32(bad[4:], 1<<31-1)
	require.ErrorIs(t, acknowledged(bad, unix.NLM_F_ACK_TLVS), unix.EEXIST)
	text := append(make([]byte, 0), bad...)
	text = binary.NativeEndian.AppendUint16(text, 4+6)
	text = binary.NativeEndian.AppendUint16(text, unix.NLMSGERR_ATTR_MSG)
	text = append(text, "words\x00"...)
	require.ErrorContains(t, acknowledged(text, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED), "words")
}
