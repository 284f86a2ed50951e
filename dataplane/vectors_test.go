package dataplane

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
)

// Vectors of other load balancers and rewriters, see the index of the shared data. Which of
// them do not apply, and why, is said beside each set, and counted: nothing is left out silently.

// tally counts the vectors of one file by what became of them.
type tally struct {
	ran  int
	left map[string]int // reason: vectors
}

func (y *tally) skip(reason string) {
	if y.left == nil {
		y.left = map[string]int{}
	}
	y.left[reason]++
}

func jsonLines[T any](t *testing.T, name string) (out []T) {
	f, err := os.Open(testenv.SharedFile(t, name))
	require.NoError(t, err)
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var v T
		require.NoError(t, json.Unmarshal(s.Bytes(), &v))
		out = append(out, v)
	}
	require.NoError(t, s.Err())
	return out
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// packetOf returns the packet in an Ethernet frame without the padding behind it; nil if there is none.
func packetOf(frame []byte) []byte {
	e, s := wire.ParseEthernet(frame)
	if s != wire.OK || e.Type != wire.EtherIPv4 && e.Type != wire.EtherIPv6 {
		return nil
	}
	b := frame[e.L3:]
	n := 0
	switch {
	case e.Type == wire.EtherIPv4 && len(b) >= 20:
		n = int(b[2])<<8 | int(b[3])
	case e.Type == wire.EtherIPv6 && len(b) >= 40:
		n = 40 + (int(b[4])<<8 | int(b[5]))
	}
	if n >= 20 && n <= len(b) {
		return b[:n:n]
	}
	return b
}
