package clienttable

import (
	"sync/atomic"
	"unsafe"
)

// The words of a packed slot are read and written one by one with atomic
// operations, because look-ups read while others write and find out afterwards. On
// amd64 such a read costs nothing; a write costs what a locked instruction does.

// sameKey reports whether the entry in a slot has key k.
func (t *Table[K, V]) sameKey(slot uint32, k *K) bool {
	if !t.packed {
		p := t.pairs[slot].Load()
		return p != nil && p.k == *k
	}
	n := unsafe.Sizeof(*k)
	p, q := unsafe.Add(t.slotPtr(slot), 8), unsafe.Pointer(k)
	if n == 40 {
		a, b := (*[5]uint64)(p), (*[5]uint64)(q)
		return (atomic.LoadUint64(&a[4])^b[4])|(atomic.LoadUint64(&a[1])^b[1])|(atomic.LoadUint64(&a[3])^b[3])|
			(atomic.LoadUint64(&a[0])^b[0])|(atomic.LoadUint64(&a[2])^b[2]) == 0
	}
	off := uintptr(0)
	for ; off+8 <= n; off += 8 {
		if atomic.LoadUint64((*uint64)(unsafe.Add(p, off))) != loadWord(unsafe.Add(q, off)) {
			return false
		}
	}
	return off == n || atomic.LoadUint64((*uint64)(unsafe.Add(p, off))) == loadTail(unsafe.Add(q, off), n-off)
}

// value reads the value in a slot; it may be torn unless meta is checked after.
func (t *Table[K, V]) value(slot uint32) (v V) {
	if !t.packed {
		if p := t.pairs[slot].Load(); p != nil {
			v = p.v
		}
		return
	}
	var k K
	readWords(unsafe.Pointer(&v), unsafe.Add(t.slotPtr(slot), 8+uintptr(roundUp8(unsafe.Sizeof(k)))), unsafe.Sizeof(v))
	return
}

// key reads the key in a slot, as value does.
func (t *Table[K, V]) key(slot uint32) (k K) {
	if !t.packed {
		if p := t.pairs[slot].Load(); p != nil {
			k = p.k
		}
		return
	}
	readWords(unsafe.Pointer(&k), unsafe.Add(t.slotPtr(slot), 8), unsafe.Sizeof(k))
	return
}

// birth reads the epoch of the owners in which the entry in a slot was stored.
func (t *Table[K, V]) birth(slot uint32) uint64 {
	if !t.packed {
		if p := t.pairs[slot].Load(); p != nil {
			return p.birth
		}
		return 0
	}
	if t.birthAt == 0 {
		return 0
	}
	return atomic.LoadUint64((*uint64)(unsafe.Add(t.slotPtr(slot), t.birthAt)))
}

// write puts an entry into a slot; m is its meta without the version. The shard is
// locked.
func (t *Table[K, V]) write(slot uint32, m uint64, k *K, v *V, birth uint64) {
	meta := t.metaOf(slot)
	ver := nextVersion(atomic.LoadUint64(meta))
	storeRelease(meta, ver)
	if t.packed {
		p := unsafe.Add(t.slotPtr(slot), 8)
		writeWords(p, unsafe.Pointer(k), unsafe.Sizeof(*k))
		writeWords(unsafe.Add(p, uintptr(roundUp8(unsafe.Sizeof(*k)))), unsafe.Pointer(v), unsafe.Sizeof(*v))
		if t.birthAt != 0 {
			storeRelease((*uint64)(unsafe.Add(t.slotPtr(slot), t.birthAt)), birth)
		}
	} else {
		t.pairs[slot].Store(&pair[K, V]{*k, *v, birth})
	}
	storeRelease(meta, m|metaLive|ver)
}

// rewrite puts another value, life and birth into a slot that keeps its key. The
// shard is locked.
func (t *Table[K, V]) rewrite(slot uint32, m uint64, k *K, v *V, birth uint64) {
	if !t.packed {
		t.write(slot, m, k, v, birth)
		return
	}
	meta := t.metaOf(slot)
	ver := nextVersion(atomic.LoadUint64(meta))
	storeRelease(meta, ver)
	p := unsafe.Add(t.slotPtr(slot), 8+uintptr(roundUp8(unsafe.Sizeof(*k))))
	writeWords(p, unsafe.Pointer(v), unsafe.Sizeof(*v))
	if t.birthAt != 0 {
		storeRelease((*uint64)(unsafe.Add(t.slotPtr(slot), t.birthAt)), birth)
	}
	storeRelease(meta, m|metaLive|ver)
}

func readWords(dst, src unsafe.Pointer, n uintptr) {
	off := uintptr(0)
	for ; off+8 <= n; off += 8 {
		*(*uint64)(unsafe.Add(dst, off)) = atomic.LoadUint64((*uint64)(unsafe.Add(src, off)))
	}
	if off < n {
		storeTail(unsafe.Add(dst, off), n-off, atomic.LoadUint64((*uint64)(unsafe.Add(src, off))))
	}
}

func writeWords(dst, src unsafe.Pointer, n uintptr) {
	copyRelease(dst, src, n/8)
	if off := n &^ 7; off < n {
		storeRelease((*uint64)(unsafe.Add(dst, off)), loadTail(unsafe.Add(src, off), n-off))
	}
}
