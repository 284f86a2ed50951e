package clienttable

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlowSetIsMakeFlow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var src, dst [16]byte
		for i := range src {
			src[i], dst[i] = byte(r.Uint32()), byte(r.Uint32())
		}
		proto, sport, dport := uint8(r.Uint32()), uint16(r.Uint32()), uint16(r.Uint32())
		ports := uint32(sport)<<16 | uint32(dport)
		a, b := [4]byte(src[:4]), [4]byte(dst[:4])

		f := Flow{1, 2, 3, 4, 5}
		f.Set4(proto, binary.BigEndian.Uint32(a[:]), binary.BigEndian.Uint32(b[:]), ports)
		require.Equal(t, MakeFlow4(proto, a, b, sport, dport), f)

		f = Flow{1, 2, 3, 4, 5}
		f.Set6(proto, (*[32]byte)(append(src[:], dst[:]...)), ports)
		require.Equal(t, MakeFlow6(proto, src, dst, sport, dport), f)
	}
}
