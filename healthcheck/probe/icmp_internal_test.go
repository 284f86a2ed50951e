package probe

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// reply turns a request into the reply to it.
func reply(req []byte, v4 bool) []byte {
	b := append([]byte{}, req...)
	b[0] = 129
	if v4 {
		b[0] = 0
	}
	return b
}

// TestEchoMatching has two probers of one process ask the same target, and their
// replies swapped.
func TestEchoMatching(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		a, b := newEcho(v4, 32, false), newEcho(v4, 32, false)
		b.id, b.first, b.next = a.id, a.first, a.next // the worst case: only the cookie differs
		ra, err := a.request()
		require.NoError(t, err)
		rb, err := b.request()
		require.NoError(t, err)
		require.True(t, a.matches(reply(ra, v4)))
		require.True(t, b.matches(reply(rb, v4)))
		require.False(t, a.matches(reply(rb, v4)), "the other's reply")
		require.False(t, a.matches(ra), "a request")
		for n := range len(ra) {
			require.False(t, a.matches(reply(ra, v4)[:n]), "cut to %d bytes", n)
		}
		for _, change := range []int{1, 4, 5, 6, 8, 24} { // code, id, sequence, cookie, data
			r := reply(ra, v4)
			r[change] ^= 0x40
			require.False(t, a.matches(r), "byte %d changed", change)
		}
		// A late reply to an earlier request counts, one to a later does not.
		_, err = a.request()
		require.NoError(t, err)
		require.True(t, a.matches(reply(ra, v4)))
		r := reply(ra, v4)
		binary.BigEndian.PutUint16(r[6:], a.next)
		require.False(t, a.matches(r))
	}
}

func TestEchoWithTheKernelsIdentifier(t *testing.T) {
	e := newEcho(true, 32, true)
	req, err := e.request()
	require.NoError(t, err)
	r := reply(req, true)
	r[4] ^= 1
	require.True(t, e.matches(r))
}

func TestSegments(t *testing.T) {
	for _, ends := range [][2]string{{"192.0.2.1:40000", "192.0.2.2:80"}, {"[2001:db8::1]:40000", "[2001:db8::2]:80"}} {
		src, dst := mustAddrPort(ends[0]), mustAddrPort(ends[1])
		syn := appendSegment(nil, src, dst, 100, tcpSYN, 2, 4, 5, 180)
		require.Len(t, syn, 24)
		require.Zero(t, tcpChecksum(src.Addr(), dst.Addr(), syn))
		back := appendSegment(nil, dst, src, 7, tcpSYN|tcpACK)
		binary.BigEndian.PutUint32(back[8:], 101)
		open, refused := judgeSegment(back, src, dst, 100)
		require.True(t, open)
		require.False(t, refused)
		back[13] = tcpRST | tcpACK
		open, refused = judgeSegment(back, src, dst, 100)
		require.False(t, open)
		require.True(t, refused)
		for _, other := range []struct {
			b   []byte
			seq uint32
		}{{back, 101}, {back[:19], 100}, {syn, 100}, {nil, 100}} {
			open, refused = judgeSegment(other.b, src, dst, other.seq)
			require.False(t, open || refused)
		}
	}
}

func mustAddrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
