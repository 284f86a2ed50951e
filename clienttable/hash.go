package clienttable

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"unsafe"
)

// Odd constants with evenly spread bits: fractional digits of square roots of
// small primes.
const (
	mix0 = 0x6a09e667f3bcc909
	mix1 = 0xbb67ae8584caa73b
	mix2 = 0x3c6ef372fe94f82b
	mix3 = 0xa54ff53a5f1d36f1
)

// fold multiplies and folds the 128-bit product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hasher hashes keys with a secret, so that nobody outside can choose keys that
// share a group.
type hasher struct {
	seed [4]uint64
	heap maphash.Seed // for keys that are no plain words
}

func makeHasher(seed uint64) hasher {
	h := hasher{heap: maphash.MakeSeed()}
	if seed == 0 {
		seed = rand.Uint64() | 1
	}
	r := rand.New(rand.NewPCG(seed, mix3))
	for i := range h.seed {
		h.seed[i] = r.Uint64()
	}
	return h
}

// words hashes n bytes at p: pairs of words are multiplied independently of each
// other, so that their latencies overlap.
//
// The last word is in both factors of a product. With a constant one, keys that are counted up in that word, as the ports of one client are, lie at
// even distances, which for one seed in fifty are close to a simple fraction of the table: all of them fell into few groups, and were refused below
// capacity. This costs less than one per cent of a look-up.
func (h *hasher) words(p unsafe.Pointer, n uintptr) uint64 {
	if n == 40 { // a Flow
		w := (*[5]uint64)(p)
		a := fold(w[0]^h.seed[0]^bits.ReverseBytes64(w[4]), w[1]^h.seed[1])
		b := fold(w[2]^h.seed[2], w[3]^h.seed[3])
		return fold(a^bits.RotateLeft64(b, 23)^h.seed[2], w[4]^h.seed[0]^mix1)
	}
	acc := h.seed[3] ^ uint64(n)
	off := uintptr(0)
	for ; off+16 <= n; off += 16 {
		a, b := loadWord(unsafe.Add(p, off)), loadWord(unsafe.Add(p, off+8))
		acc = bits.RotateLeft64(acc, 29) ^ fold(a^h.seed[0]^acc, b^h.seed[1])
	}
	var last uint64
	if off+8 <= n {
		last = loadWord(unsafe.Add(p, off))
		off += 8
	}
	if off < n {
		last = bits.RotateLeft64(last, 32)*mix0 ^ loadTail(unsafe.Add(p, off), n-off)
	}
	return fold(acc^h.seed[2]^last*mix0, last^h.seed[3]^mix1)
}

// loadWord reads a word that need not be aligned.
func loadWord(p unsafe.Pointer) uint64 { return *(*uint64)(p) }

// loadTail reads the last n < 8 bytes of a value as a word padded with zeros.
func loadTail(p unsafe.Pointer, n uintptr) (w uint64) {
	b := (*byte)(unsafe.Pointer(&w))
	copy(unsafe.Slice(b, n), unsafe.Slice((*byte)(p), n))
	return w
}

// storeTail writes the first n < 8 bytes of w.
func storeTail(p unsafe.Pointer, n uintptr, w uint64) {
	b := (*byte)(unsafe.Pointer(&w))
	copy(unsafe.Slice((*byte)(p), n), unsafe.Slice(b, n))
}

// hashAny hashes keys of the heap layout. It is not a method of hasher because those
// cannot have type parameters.
func hashAny[K comparable](h *hasher, k K) uint64 { return maphash.Comparable(h.heap, k) }
