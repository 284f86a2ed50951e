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
	t.grow.ahead.Store(true)
	// In steps, so that nobody else who needs the address space waits long.
	const step = 16 << 20
	for at := uintptr(0); at < t.region.size; at += step {
		if unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(t.region.base, at)), int(min(step, t.region.size-at))), unix.MADV_POPULATE_WRITE) != nil {
			break
		}
	}
	runtime.KeepAlive(t)
}
