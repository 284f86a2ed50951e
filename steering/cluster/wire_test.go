package cluster

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

func testHello() hello {
	return hello{1, 3, classBulk, "test", flowshare.Member{Name: "lb0", Epoch: 7}, flowshare.Member{Name: "lb1", Epoch: 1 << 60}}
}

func TestHelloForm(t *testing.T) {
	h := testHello()
	b := h.append(nil)
	got, err := readHello(bytes.NewReader(b))
	require.NoError(t, err)
	require.Equal(t, h, got)
	for n := range b {
		_, err := readHello(bytes.NewReader(b[:n]))
		require.Error(t, err, "%d bytes", n)
		if n >= 6 {
			_, err = parseHello(b[6:n])
			require.ErrorIs(t, err, errHello)
		}
	}
	_, err = parseHello(append(b[6:], 0))
	require.ErrorIs(t, err, errHello)
	v, ok := agree(1, 3, 2, 5)
	require.True(t, ok)
	require.EqualValues(t, 3, v)
	_, ok = agree(1, 1, 2, 5)
	require.False(t, ok)
	for code := welcome; code < 7; code++ {
		_, err := readAnswer(bytes.NewReader(appendAnswer(nil, code, 1)))
		require.Equal(t, code == welcome, err == nil)
	}
	_, err = readAnswer(bytes.NewReader([]byte("nonsense")))
	require.ErrorIs(t, err, errHello)
}

func FuzzHello(f *testing.F) {
	h := testHello()
	f.Add(h.append(nil)[6:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil {
			require.Equal(t, b, h.append(nil)[6:], "a hello has one form")
		}
	})
}

func FuzzSettings(f *testing.F) {
	f.Add(appendSettings(nil, map[string]string{"a": "b", "": "x"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, err := parseSettings(b)
		if err != nil {
			return
		}
		back, rest2, err := parseSettings(append(appendSettings(nil, s), rest...))
		require.NoError(t, err)
		require.Equal(t, s, back)
		require.Equal(t, rest, rest2)
	})
}

func FuzzReport(f *testing.F) {
	r := told{"lb0", 5, 6, NodeReport{"sh1", true, steering.High}}
	f.Add(r.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, rest, err := parseTold(b); err == nil {
			require.Equal(t, b[:len(b)-len(rest)], r.append(nil))
		}
	})
}

func FuzzMeta(f *testing.F) {
	m := meta{1, 2, 99, digest{1}, digest{2}}
	f.Add(m.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := parseMeta(b); err == nil {
			require.Equal(t, b[:metaSize], m.append(nil))
		}
	})
}

// FuzzBulk gives a member's bulk messages to one that follows and leads.
func FuzzBulk(f *testing.F) {
	f.Add(append(bulkHead(bulkFollow, "t"), make([]byte, 16)...))
	f.Add(append(bulkHead(bulkChanges, "t"), make([]byte, 20)...))
	f.Add(append(bulkHead(bulkPart, "t"), 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 'x'))
	f.Add(append([]byte{bulkSettings}, appendSettings(appendSettings(nil, map[string]string{"a": "b"}), nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := bare(t)
		from := flowshare.Member{Name: "lb1", Epoch: 2}
		c.members["lb1"] = &member{meta: meta{epoch: 2}, name: "lb1"}
		c.follows[feedKey{from, "t"}] = &following{}
		_ = c.bulk(from, b)
		_ = c.bulk(from, b)
		c.stop()
		c.giveUp()
		c.wg.Wait()
	})
}
