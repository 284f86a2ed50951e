//go:build !race

package dataplane

import (
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

// wantHuge asks for huge pages, or for none: a record is reached at random, and walking page tables costs as much as the record. It is an
// optimisation, as the system likes.
func wantHuge(mem []byte, want bool) {
	advice := unix.MADV_HUGEPAGE
	if !want {
		// Where nothing is used, the system's search for pages to be made huge ones would waste its time.
		advice = unix.MADV_NOHUGEPAGE
	}
	_ = unix.Madvise(mem, advice)
}

// forgetMemory gives the content of memory back, and leaves it readable, as zeros.
func forgetMemory(mem []byte) { _ = unix.Madvise(mem, unix.MADV_DONTNEED) }
