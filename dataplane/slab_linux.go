//go:build !race

package dataplane

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// populate has the system provide the memory of some records.
func populate(recs []record) {
	const page = 4096
	start := unsafe.Pointer(unsafe.SliceData(recs))
	skew := uintptr(start) & (page - 1) // the first record of all begins a page
	n := uintptr(len(recs))*unsafe.Sizeof(record{}) + skew
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(start, -int(skew))), int((n+page-1)&^(page-1))), unix.MADV_POPULATE_WRITE)
}

// allocRecords takes memory for n records from the system, where the garbage collector does not see it, and
// asks for huge pages: a record is reached at random, and walking page tables costs as much as the record. The memory is
// used up page by page. forget gives its content back, and leaves it readable, as zeros; the memory itself goes
// when owner is collected.
func allocRecords(n int, owner *slab) (recs []record, forget func()) {
	const huge = 2 << 20
	size := n*int(unsafe.Sizeof(record{})) + huge // for the alignment
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return make([]record, n), func() {}
	}
	base := unsafe.Pointer(unsafe.SliceData(mem))
	skip := int(-uintptr(base) & (huge - 1))
	_ = unix.Madvise(mem[skip:], unix.MADV_HUGEPAGE) // an optimisation, as the system likes
	runtime.AddCleanup(owner, func(mem []byte) { _ = unix.Munmap(mem) }, mem)
	return unsafe.Slice((*record)(unsafe.Add(base, skip)), n), func() { _ = unix.Madvise(mem, unix.MADV_DONTNEED) }
}
