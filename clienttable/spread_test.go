package clienttable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCountedKeysFindRoom: a table takes what it is made for, also of keys that are counted up somewhere, such as the ports of one client.
func TestCountedKeysFindRoom(t *testing.T) {
	const size = 3000
	now := time.Now()
	seeds := uint64(100)
	if raceEnabled {
		seeds = 10
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		words := must(New(&Config[uint64, uint32]{MaxEntries: size, Seed: seed}))
		shift := seed % 4 * 16
		for i := range uint32(size) {
			require.NoError(t, words.StoreAt(now, uint64(i)<<shift, i), "seed %d, shift %d", seed, shift)
		}
		words.Close()
		for client := range byte(3) {
			flows := must(New(&Config[Flow, uint32]{MaxEntries: size, Seed: seed}))
			for i := range uint32(size) {
				f := MakeFlow4(6, [4]byte{192, 0, 2, client}, [4]byte{198, 51, 100, 1}, uint16(1024+i), 443)
				if seed%2 == 0 {
					f = f.Reverse()
				}
				require.NoError(t, flows.StoreAt(now, f, i), "seed %d, client %d", seed, client)
			}
			flows.Close()
		}
	}
}
