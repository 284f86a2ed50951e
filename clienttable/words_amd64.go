//go:build !race

package clienttable

import "unsafe"

// storeRelease stores a word atomically: whoever reads it atomically sees all that
// was stored before. On amd64 every aligned store does, but sync/atomic offers none
// that does not also wait for all stores before it, ten times as long.
//
//go:noescape
func storeRelease(p *uint64, w uint64)

// copyRelease is storeRelease for n words in turn. src need not be aligned.
//
//go:noescape
func copyRelease(dst, src unsafe.Pointer, n uintptr)

// prefetch brings the cache lines of n addresses near, and does not wait for them.
//
//go:noescape
func prefetch(lines *[prefetchMax]unsafe.Pointer, n int)

// prefetchOne is prefetch for one address.
//
//go:noescape
func prefetchOne(p unsafe.Pointer)

// prefetchRun is prefetch for the groupSlots addresses from p on that lie stride bytes
// apart.
//
//go:noescape
func prefetchRun(p unsafe.Pointer, stride uintptr)
