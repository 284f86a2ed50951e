//go:build !linux || race

package clienttable

import "unsafe"

// The race detector knows only the Go heap: on memory mapped from the system it
// would neither see that atomic operations order others nor find any race. So with
// it, the storage is here.

// region is zeroed memory that the garbage collector does not scan.
type region struct {
	all  []uint64
	base unsafe.Pointer
	size uintptr
}

func newRegion(size uintptr) (region, error) {
	all := make([]uint64, size/8+8)
	base := unsafe.Pointer(unsafe.SliceData(all))
	base = unsafe.Add(base, -uintptr(base)&63)
	return region{all: all, base: base, size: size}, nil
}

// clear does nothing: the memory goes with the table.
func (r region) clear() {}

// free does nothing: the garbage collector does.
func (r region) free() {}
