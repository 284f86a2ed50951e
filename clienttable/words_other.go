//go:build !amd64 || race

package clienttable

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// storeRelease stores a word atomically: whoever reads it atomically sees all that
// was stored before.
func storeRelease(p *uint64, w uint64) { atomic.StoreUint64(p, w) }

// copyRelease is storeRelease for n words in turn. src need not be aligned.
func copyRelease(dst, src unsafe.Pointer, n uintptr) {
	for i := range n {
		atomic.StoreUint64((*uint64)(unsafe.Add(dst, i*8)), loadWord(unsafe.Add(src, i*8)))
	}
}

// prefetch brings the cache lines of n addresses of words near. The loads have
// nothing to do with each other, so that they overlap.
func prefetch(lines *[prefetchMax]unsafe.Pointer, n int) {
	var sink uint64
	for i := range n {
		sink += atomic.LoadUint64((*uint64)(lines[i]))
	}
	runtime.KeepAlive(sink)
}

// prefetchOne is prefetch for one address.
func prefetchOne(p unsafe.Pointer) {
	runtime.KeepAlive(atomic.LoadUint64((*uint64)(p)))
}

// prefetchRun would be prefetch for the groupSlots addresses from p on that lie stride
// bytes apart. They are read in turn anyway, which processors see.
func prefetchRun(unsafe.Pointer, uintptr) {}
