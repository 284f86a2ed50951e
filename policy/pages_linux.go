package policy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePages asks the system to back slots, which nobody has written to yet, with huge pages: a
// slot is reached at random, and walking the page tables may cost as much as the slot. This is
// advice about memory that stays the garbage collector's; unsafe only names its bytes.
func hugePages[V any](slots []slot[V]) {
	const huge = 2 << 20
	n := uintptr(len(slots)) * unsafe.Sizeof(slot[V]{})
	start := unsafe.Pointer(unsafe.SliceData(slots))
	skip := -uintptr(start) & (huge - 1)
	if n < skip+huge {
		return
	}
	n = (n - skip) &^ (huge - 1)
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(start, skip)), int(n)), unix.MADV_HUGEPAGE)
}
