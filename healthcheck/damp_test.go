package healthcheck

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// play runs results ('1' pass, '0' fail, '?' inconclusive) through a damper, and
// returns whether the target is usable after each.
func play(d *damper, s State, l limits, results string) string {
	var out strings.Builder
	for i, c := range results {
		v := map[rune]Verdict{'1': Pass, '0': Fail, '?': Inconclusive}[c]
		s = NextPort(s, d.add(int64(i), v, false, s, l))
		if s.Usable() {
			out.WriteByte('1')
		} else {
			out.WriteByte('0')
		}
	}
	return out.String()
}

func TestDamperCountsInARow(t *testing.T) {
	t.Parallel()
	l := limits{rise: 1, fall: 3}
	require.Equal(t, "11111111", play(new(damper), Active, l, "01101101"))
	require.Equal(t, "110", play(new(damper), Active, l, "000"))
	require.Equal(t, "11110", play(new(damper), Active, l, "0?0?0"))
	require.Equal(t, "001", play(new(damper), Enabled, limits{rise: 2, fall: 3}, "1?1"))
}

// The published truth tables take the very first result as it is; here it counts
// like any other (a node is unusable until it has passed Rise times). So they
// start from the state the first result stands for.
func TestDamperPublishedTruthTables(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(testenv.SharedFile(t, "vectors/vectors.json"))
	require.NoError(t, err)
	var v struct {
		Dampener struct{ Cases [][4]any }
	}
	require.NoError(t, json.Unmarshal(raw, &v))
	require.NotEmpty(t, v.Dampener.Cases)
	for _, c := range v.Dampener.Cases {
		l := limits{rise: int32(c[0].(float64)), fall: int32(c[1].(float64))}
		in, want := c[2].(string), c[3].(string)
		s := Failed
		if in[0] == '1' {
			s = Active
		}
		require.Equal(t, want[1:], play(new(damper), s, l, in[1:]), "%v", c)
		// From the true start the first result counts like any other.
		if in[0] == '1' && l.rise > 1 {
			require.Equal(t, byte('0'), play(new(damper), Enabled, l, in)[0])
		}
	}
}

// naive says the same as damper in the most obvious way: it looks at the whole
// past each time.
func naive(l limits, results string) string {
	up, out := false, ""
	for i := range results {
		past := strings.ReplaceAll(results[:i+1], "?", "")
		if strings.HasSuffix(past, strings.Repeat("0", int(l.fall))) {
			up = false
		}
		if strings.HasSuffix(past, strings.Repeat("1", int(l.rise))) {
			up = true
		}
		out += map[bool]string{true: "1", false: "0"}[up]
	}
	return out
}

func FuzzDamper(f *testing.F) {
	f.Add(uint8(1), uint8(3), []byte{0, 1, 1, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, rise, fall uint8, in []byte) {
		l := limits{rise: int32(rise%5) + 1, fall: int32(fall%5) + 1}
		results := ""
		for _, b := range in[:min(len(in), 100)] {
			results += string("01?"[b%3])
		}
		require.Equal(t, naive(l, results), play(new(damper), Enabled, l, results))
	})
}
