package clienttable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrefaultChangesNothing(t *testing.T) {
	tab, err := New(&Config[Flow, uint64]{MaxEntries: 1 << 16})
	require.NoError(t, err)
	defer tab.Close()
	var f Flow
	f.Set4(17, 1, 2, 3)
	require.NoError(t, tab.Store(f, 7))
	tab.Prefault()
	v, ok := tab.Load(f)
	require.True(t, ok)
	require.EqualValues(t, 7, v)
	require.Equal(t, 1, tab.Len())
	require.NoError(t, tab.Close())
	tab.Prefault()
}
