package steering

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

func vector(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(testenv.SharedFile(t, "vectors/"+file))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

// Maglev tables of the paper and of other implementations, from their own permutations
// or hashes: our fill must come to the same slots.
func TestMaglevVectors(t *testing.T) {
	var v struct {
		PermutationDriven []struct {
			Origin       string
			Permutations [][]uint32
			Lookup       []int16
			WithoutOne   []int16 `json:"lookup_with_backend1_dead"`
		} `json:"permutation_driven"`
		Envoy struct {
			Cases []struct {
				M       int
				Hosts   []string
				Weights []uint64
				Table   []int16
			}
		}
	}
	vector(t, "maglev.json", &v)
	require.NotEmpty(t, v.PermutationDriven)
	for _, c := range v.PermutationDriven {
		m := uint32(len(c.Lookup))
		var all, without []filler
		for i, p := range c.Permutations {
			f := filler{pos: p[0], skip: (p[1] + m - p[0]) % m, index: int16(i)}
			all = append(all, f)
			if i != 1 {
				without = append(without, f)
			}
		}
		require.Equal(t, c.Lookup, fill(int(m), all, []uint64{1, 1, 1}), c.Origin)
		require.Equal(t, c.WithoutOne, fill(int(m), without, []uint64{1, 1}), c.Origin)
	}
	require.NotEmpty(t, v.Envoy.Cases)
	for _, c := range v.Envoy.Cases {
		require.Equal(t, c.Table, fill(c.M, xxhFillers(c.M, c.Hosts), c.Weights))
	}
}

func xxhFillers(m int, keys []string) (fs []filler) {
	for i, key := range keys {
		fs = append(fs, filler{
			pos: uint32(xxh64(key, 0) % uint64(m)), skip: uint32(xxh64(key, 1)%uint64(m-1)) + 1, index: int16(i),
		})
	}
	return fs
}

func TestMaglevLargeVectors(t *testing.T) {
	var v map[string]json.RawMessage
	vector(t, "maglev_vectors.json", &v)
	seen := 0
	for name, raw := range v {
		if !strings.HasPrefix(name, "xxh64_M65537_N") {
			continue
		}
		seen++
		n, err := strconv.Atoi(strings.Split(strings.TrimPrefix(name, "xxh64_M65537_N"), "_")[0])
		require.NoError(t, err)
		var want struct {
			First16  []int16
			Sum      string `json:"sha256_be16"`
			Min, Max int
			Moved    int `json:"moved_when_last_removed"`
		}
		require.NoError(t, json.Unmarshal(raw, &want))
		var hosts []string
		var weights []uint64
		for i := range n {
			hosts = append(hosts, fmt.Sprintf("10.0.%d.%d:80", i/250, i%250+1))
			weights = append(weights, 1)
		}
		table := fill(65537, xxhFillers(65537, hosts), weights)
		require.Equal(t, want.First16, table[:16], name)
		b := make([]byte, 0, 2*len(table))
		for _, i := range table {
			b = binary.BigEndian.AppendUint16(b, uint16(i))
		}
		sum := sha256.Sum256(b)
		require.Equal(t, want.Sum, hex.EncodeToString(sum[:]), name)
		count := make([]int, n)
		for _, i := range table {
			count[i]++
		}
		require.Equal(t, want.Min, slices.Min(count), name)
		require.Equal(t, want.Max, slices.Max(count), name)
		if n == 1 {
			continue
		}
		moved := 0 // beyond the slots of the last
		for s, i := range fill(65537, xxhFillers(65537, hosts[:n-1]), weights[:n-1]) {
			if int(table[s]) != n-1 && table[s] != i {
				moved++
			}
		}
		require.Equal(t, want.Moved, moved, name)
	}
	require.Positive(t, seen)
	// The small tables: by their hosts, or, where their own permutations are not told, by the
	// slots of each.
	for name, hosts := range map[string][]string{
		"envoy_M7_addr":        {"127.0.0.1:90", "127.0.0.1:91", "127.0.0.1:92", "127.0.0.1:93", "127.0.0.1:94", "127.0.0.1:95"},
		"envoy_M7_name":        {"90", "91", "92", "93", "94", "95"},
		"envoy_M17_w1_2_90_91": {"127.0.0.1:90", "127.0.0.1:91"},
	} {
		var want []int16
		require.NoError(t, json.Unmarshal(v[name], &want))
		weights := []uint64{1, 1, 1, 1, 1, 1}
		if len(hosts) == 2 {
			weights = []uint64{1, 2}
		}
		require.Equal(t, want, fill(len(want), xxhFillers(len(want), hosts), weights), name)
	}
	var first, second []int16
	require.NoError(t, json.Unmarshal(v["katran_v1_M7_w2_1"], &first))
	require.NoError(t, json.Unmarshal(v["katran_v2_M7_w2_1"], &second))
	slots := func(table []int16) (a int) {
		for _, i := range table {
			if i == 0 {
				a++
			}
		}
		return a
	}
	ours := newTable(t, 7, Share{"a", 2}, Share{"b", 1}).Slots()
	require.Equal(t, slots(second), slots(ours), "weights 2:1 of 7 slots, as the version that was put right")
	require.NotEqual(t, slots(first), slots(ours))
}

// xxh64 is the published XXH64 hash, for the vectors above only.
func xxh64(s string, seed uint64) uint64 {
	const (
		p1 = 0x9E3779B185EBCA87
		p2 = 0xC2B2AE3D27D4EB4F
		p3 = 0x165667B19E3779F9
		p4 = 0x85EBCA77C2B2AE63
		p5 = 0x27D4EB2F165667C5
	)
	b := []byte(s)
	rot := bits.RotateLeft64
	round := func(acc, in uint64) uint64 { return rot(acc+in*p2, 31) * p1 }
	var h uint64
	if len(b) >= 32 {
		panic("xxh64: short inputs only")
	}
	h = seed + p5 + uint64(len(b))
	for ; len(b) >= 8; b = b[8:] {
		h = rot(h^round(0, binary.LittleEndian.Uint64(b)), 27)*p1 + p4
	}
	if len(b) >= 4 {
		h = rot(h^uint64(binary.LittleEndian.Uint32(b))*p1, 23)*p2 + p3
		b = b[4:]
	}
	for _, c := range b {
		h = rot(h^uint64(c)*p5, 11) * p1
	}
	h = (h ^ h>>33) * p2
	h = (h ^ h>>29) * p3
	return h ^ h>>32
}

func TestWCCPVectors(t *testing.T) {
	var v struct {
		Vectors []struct {
			Src, Dst, Flags string
			Bucket          uint8
		}
		Assignment struct {
			Caches int
			Ranges []string
		} `json:"bucket_assignment_example"`
	}
	vector(t, "wccp_hash.json", &v)
	require.NotEmpty(t, v.Vectors)
	for _, c := range v.Vectors {
		src := netip.AddrPortFrom(netip.MustParseAddr(c.Src), 4711)
		f, dst := WCCPSrcAddr, src
		if c.Dst != "" {
			f |= WCCPDstAddr
			dst = netip.AddrPortFrom(netip.MustParseAddr(c.Dst), 80)
			require.Equal(t, c.Bucket, HashWCCP(f, dst, src), "symmetric")
		}
		require.Equal(t, c.Bucket, HashWCCP(f, src, dst), c.Src)
	}
	// As many buckets each as the example has: 85, and one cache the one left over.
	var want []int
	for _, r := range v.Assignment.Ranges {
		var from, to, n int
		_, err := fmt.Sscanf(r, "%d-%d (%d)", &from, &to, &n)
		require.NoError(t, err)
		require.Equal(t, to-from+1, n)
		want = append(want, n)
	}
	b, err := NewBuckets(DefaultBuckets, 0, evenShares(v.Assignment.Caches)...)
	require.NoError(t, err)
	got := make([]int, v.Assignment.Caches)
	for _, i := range b.Slots() {
		got[i]++
	}
	require.ElementsMatch(t, want, got)
}

func TestToeplitzVectors(t *testing.T) {
	var v struct {
		Key     string `json:"key_hex"`
		Vectors []struct {
			Src, Dst     string
			Sport, Dport uint16
			L3           string `json:"hash_l3"`
			L3L4         string `json:"hash_l3l4"`
		}
	}
	vector(t, "toeplitz_rss.json", &v)
	key, err := hex.DecodeString(v.Key)
	require.NoError(t, err)
	h := NewToeplitz([40]byte(key))
	require.NotEmpty(t, v.Vectors)
	for _, c := range v.Vectors {
		src := netip.AddrPortFrom(netip.MustParseAddr(c.Src), c.Sport)
		dst := netip.AddrPortFrom(netip.MustParseAddr(c.Dst), c.Dport)
		require.Equal(t, c.L3, fmt.Sprintf("%#08x", h.Sum(src, dst, false)))
		require.Equal(t, c.L3L4, fmt.Sprintf("%#08x", h.Sum(src, dst, true)))
	}
	var even [40]byte
	for i := range even {
		even[i] = []byte{0x6d, 0x5a}[i%2]
	}
	s := NewToeplitz(even)
	a, b := netip.MustParseAddrPort("[2001:db8::1]:1000"), netip.MustParseAddrPort("[2001:db8::2]:80")
	require.Equal(t, s.Sum(a, b, true), s.Sum(b, a, true))
}

// The nginx sequence of smooth weighted round robin, from the vectors.
func TestSmoothVector(t *testing.T) {
	var v struct {
		SWRR struct {
			Weights map[string]int
			Order   string
		}
	}
	vector(t, "vectors.json", &v)
	w := v.SWRR.Weights
	p := newPool(t, &Config{Metric: SmoothCyclic}, nodes(w["a"], w["b"], w["c"])...)
	require.Equal(t, v.SWRR.Order, picks(t, p, len(v.SWRR.Order), true))
}
