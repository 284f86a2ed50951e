package wire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlainIsParse compares the short way with the long one, for whole packets, cut ones, and ones with any byte of
// their headers changed.
func TestPlainIsParse(t *testing.T) {
	for name, p := range benchPackets(t) {
		t.Run(name, func(t *testing.T) {
			plainly := 0
			check := func(b []byte) {
				var got, want View
				if plain(b, &got) {
					plainly++
					require.Equal(t, OK, parse(b, &want, false))
					require.Equal(t, want, got)
				} else {
					require.Equal(t, want, got, "changed")
				}
			}
			check(p)
			require.Equal(t, 1, plainly)
			for i := range min(len(p), 80) {
				check(p[:i])
				b := bytes.Clone(p)
				for c := range 256 {
					b[i] = byte(c)
					check(b)
				}
			}
			require.Greater(t, plainly, 1000)
		})
	}
}

// TestRewriteIsSetDstAndSetSrc compares rewriting at once with one end after the other.
func TestRewriteIsSetDstAndSetSrc(t *testing.T) {
	for name, p := range benchPackets(t) {
		t.Run(name, func(t *testing.T) {
			src, dst := end("10.7.7.7:80"), end("10.8.8.8:8081")
			if p[0]>>4 == 6 {
				src, dst = end("[2001:db8::7]:80"), end("[2001:db8:7::8]:8081")
			}
			for _, partial := range []bool{false, true} {
				for which := range 4 {
					var from, to *End
					if which&1 != 0 {
						from = src
					}
					if which&2 != 0 {
						to = dst
					}
					one, two := bytes.Clone(p), bytes.Clone(p)
					var v, w View
					require.Equal(t, OK, Parse(one, &v))
					if !partial {
						sum, ok := v.TransportSum(one)
						require.True(t, ok)
						one[v.SumOff], one[v.SumOff+1] = byte(sum>>8), byte(sum)
						copy(two, one)
					}
					require.Equal(t, OK, Parse(two, &w))
					v.Rewrite(one, from, to, partial)
					if to != nil {
						w.SetDst(two, to, partial)
					}
					if from != nil {
						w.SetSrc(two, from, partial)
					}
					require.Equal(t, two, one)
					require.Equal(t, w, v)
					if !partial {
						require.True(t, v.SumOK(one))
					}
					require.True(t, v.HeaderSumOK(one) || !w.HeaderSumOK(two))
				}
			}
		})
	}
}
