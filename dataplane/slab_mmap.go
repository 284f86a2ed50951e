//go:build (linux || darwin) && !race

package dataplane

import (
	"math/bits"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is memory from the system, where the garbage collector does not see it. It is used up page by page.
type mapping struct {
	base unsafe.Pointer
	size int
}

const hugePage = 2 << 20

// reserve sets address space aside for most records, or as many as the system gives space for, at least n. It costs nothing but
// numbers: only what is used can be touched at all. The mapping goes when owner is collected.
func reserve(n, most int, owner *slab) ([]record, memory) {
	if bits.UintSize == 32 { // where it is dear
		most = max(n, min(most, 4*n, 256<<20/int(recordSize)))
	}
	for ; ; most = max(n, most/2) {
		size := uintptr(most)*uintptr(recordSize) + 2*hugePage // for the alignment of both ends
		addr, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err == nil {
			runtime.AddCleanup(owner, func(all mapping) { _ = unix.MunmapPtr(all.base, uintptr(all.size)) }, mapping{addr, int(size)})
			m := &mapping{base: unsafe.Add(addr, -uintptr(addr)&(hugePage-1)), size: most * int(recordSize)}
			wantHuge(unsafe.Slice((*byte)(m.base), m.size), false)
			return unsafe.Slice((*record)(m.base), most), m
		}
		if most == n {
			return onHeap(n)
		}
	}
}

// bytes returns the memory of records, in whole huge pages. The last one of before has been used already.
func (m *mapping) bytes(from, to uint32) []byte {
	up := func(at uint32) int { return int((uintptr(at)*uintptr(recordSize) + hugePage - 1) &^ (hugePage - 1)) }
	return unsafe.Slice((*byte)(m.base), m.size+hugePage)[up(from):up(to)]
}

func (m *mapping) use(from, to uint32) error {
	b := m.bytes(from, to)
	if len(b) == 0 {
		return nil
	}
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	wantHuge(b, true)
	return nil
}

func (m *mapping) drop(from, to uint32) {
	if b := m.bytes(from, to); len(b) > 0 {
		forgetMemory(b)
	}
}
