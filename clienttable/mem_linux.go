//go:build linux && !race

package clienttable

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size that transparent huge pages have on common machines. Where
// it is another, the storage is merely less well aligned.
const hugePage = 2 << 20

// region is zeroed memory outside the Go heap.
type region struct {
	all  []byte // as mapped
	base unsafe.Pointer
	size uintptr
}

// newRegion maps memory. Pages are only backed once they are touched. Large
// regions ask for huge pages, which spare most misses of the address cache.
func newRegion(size uintptr) (region, error) {
	n := size
	if size >= hugePage {
		n += hugePage // for the alignment
	}
	if int(n) <= 0 || uintptr(int(n)) != n {
		return region{}, fmt.Errorf("clienttable: %d bytes exceed the address space", n)
	}
	all, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return region{}, fmt.Errorf("clienttable: mapping %d bytes: %w", n, err)
	}
	r := region{all: all, base: unsafe.Pointer(unsafe.SliceData(all)), size: size}
	if size >= hugePage {
		r.base = unsafe.Add(r.base, -uintptr(r.base)&(hugePage-1))
		_ = unix.Madvise(unsafe.Slice((*byte)(r.base), int(size)), unix.MADV_HUGEPAGE)
	}
	return r, nil
}

// clear gives the memory back; it stays mapped and reads as zero.
func (r region) clear() {
	_ = unix.Madvise(r.all, unix.MADV_DONTNEED)
}

// free unmaps the memory.
func (r region) free() {
	_ = unix.Munmap(r.all)
}
