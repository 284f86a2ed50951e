//go:build linux && !race

package clienttable

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Prefault has the system provide the table's memory now, all of it, instead of where and when it is first
// touched. Entries lie at random, so that the first hundreds touch it all anyway, and each waits while the system clears
// a huge page. It may be called at any time, by any goroutine; on systems that cannot (before Linux 5.14) it does
// nothing.
func (t *Table[K, V]) Prefault() {
	t = t.newest()
	if t.closed.Load() {
		return
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(t.region.base), int(t.region.size)), unix.MADV_POPULATE_WRITE)
	runtime.KeepAlive(t)
}
