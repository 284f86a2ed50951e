package spread

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEven has neighbouring clients and ports on all workers alike.
func TestEven(t *testing.T) {
	for _, size := range []int{4, 16} {
		for _, workers := range []uint32{2, 3, 4, 7, 16} {
			n := make([]int, workers)
			const clients, ports = 256, 64
			for c := range uint32(clients) {
				a := make([]byte, size)
				a[0] = 10
				binary.BigEndian.PutUint32(a[size-4:], 0x0a000000+c)
				for p := range uint16(ports) {
					n[Hash(Fold(a), 1024+p)%workers]++
				}
			}
			want := clients * ports / float64(workers)
			for _, got := range n {
				require.InDelta(t, want, got, 0.15*want, "%d bytes, %d workers", size, workers)
			}
		}
	}
}
