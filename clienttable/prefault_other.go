//go:build !linux || race

package clienttable

// Prefault does nothing on this system: see the Linux version.
func (t *Table[K, V]) Prefault() {}
