package wire

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// slowSum is the definition (RFC 1071 section 1), word by word.
func slowSum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
		if s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

// same compares sums, of which 0 and 0xffff are one.
func same(a, b uint16) bool { return a%0xffff == b%0xffff }

func TestChecksumVectors(t *testing.T) {
	raw, err := os.ReadFile(testenv.SharedFile(t, "vectors/internet_checksum.json"))
	require.NoError(t, err)
	var in struct {
		Sums []struct {
			Data string `json:"data_hex"`
			Sum  string `json:"ones_complement_sum"`
			Ck   string `json:"checksum"`
		}
		Incremental []struct {
			Old string `json:"old_checksum"`
			M   string
			New string `json:"m_new"`
			Ck  string `json:"new_checksum"`
		}
	}
	require.NoError(t, json.Unmarshal(raw, &in))
	word := func(s string) uint16 {
		v, err := strconv.ParseUint(s, 16, 16)
		require.NoError(t, err)
		return uint16(v)
	}
	for _, c := range in.Sums {
		b, err := hex.DecodeString(c.Data)
		require.NoError(t, err)
		require.Equal(t, word(c.Sum), Sum(0).AddBytes(b).Fold(), c.Data)
		require.Equal(t, word(c.Ck), Checksum(b), c.Data)
	}
	for _, c := range in.Incremental {
		require.Equal(t, word(c.Ck), Diff(0).Word(word(c.M), word(c.New)).Apply(word(c.Old)))
	}
	require.NotEmpty(t, in.Sums)
	require.NotEmpty(t, in.Incremental)
}

func TestDiffZeros(t *testing.T) {
	require.EqualValues(t, 0xffff, Diff(0).Word(0x1234, 0x1234).Apply(0xffff))
	require.EqualValues(t, 0x0000, Diff(0).Word(0x1234, 0x1234).Apply(0x0000))
	require.EqualValues(t, 0xffff, Diff(0).Apply(0xffff))
	require.EqualValues(t, 0x0000, Diff(0).Word(0x5555, 0x3285).Apply(0xdd2f))
	require.EqualValues(t, 0xffff, Diff(0).Word(0x5555, 0x3285).ApplyUDP(0xdd2f), "a computed zero is sent as ffff")
}

func TestSumAgainstSlow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 2100)
	for range 5000 {
		n := r.IntN(len(b))
		for i := range b[:n] {
			b[i] = byte(r.Uint32() >> (r.IntN(4) * 8))
		}
		if r.IntN(4) == 0 {
			for i := range b[:n] {
				b[i] = 0xff
			}
		}
		k := n / 2 &^ 1
		require.Equal(t, slowSum(b[:n]), Sum(0).AddBytes(b[:n]).Fold())
		require.True(t, same(slowSum(b[:n]), Sum(0).AddBytes(b[:k]).AddBytes(b[k:n]).Fold()))
	}
}

func FuzzDiff(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8}, uint32(0x0a000001), uint16(80))
	f.Fuzz(func(t *testing.T, b []byte, addr uint32, port uint16) {
		b = b[:len(b)&^1]
		if len(b) < 12 {
			return
		}
		sum := Checksum(b)
		d := Diff(0).Long(binary.BigEndian.Uint32(b[4:]), addr).Word(binary.BigEndian.Uint16(b[10:]), port)
		partial := Sum(0).AddBytes(b).Fold()
		binary.BigEndian.PutUint32(b[4:], addr)
		binary.BigEndian.PutUint16(b[10:], port)
		if got, want := d.Apply(sum), Checksum(b); !same(got, want) {
			t.Fatalf("got %04x, want %04x", got, want)
		}
		if got, want := d.ApplyPartial(partial), slowSum(b); !same(got, want) {
			t.Fatalf("partial: got %04x, want %04x", got, want)
		}
		if slowSum(b) != 0 && sum != 0xffff {
			// The sum of anything but zeros has one right form.
			if got, want := d.Apply(sum), Checksum(b); got != want {
				t.Fatalf("form: got %04x, want %04x", got, want)
			}
		}
	})
}

var sink uint64

func BenchmarkChecksum1500(b *testing.B) {
	p := make([]byte, 1500)
	for i := range p {
		p[i] = byte(i * 7)
	}
	b.SetBytes(1500)
	for b.Loop() {
		sink += uint64(Checksum(p))
	}
}
