package clienttable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A table that loses owners all the time, so that there are always notes of some, keeps none of those lost long ago.
func TestOwnersAreLostAllTheTime(t *testing.T) {
	tab, err := New(&Config[Flow, uint32]{MaxEntries: 20000, Owner: func(v uint32) uint32 { return v }})
	require.NoError(t, err)
	defer tab.Close()
	now := time.Now()
	for o := uint32(1); o < 200_000; o++ {
		tab.Invalidate(o)
		if o%100 == 0 {
			tab.Sweep(now, 1024)
		}
	}
	n := 0
	if g := tab.gone.Load(); g != nil {
		for i := range g {
			if m := g[i].Load(); m != nil {
				for j := range m.parts {
					if m.parts[j].Load() != nil {
						n++
					}
				}
			}
		}
	}
	require.Less(t, n, 20, "of 2048 owners each")
}
