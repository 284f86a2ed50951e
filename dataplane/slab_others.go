//go:build !linux || race

package dataplane

// allocRecords makes n records. See the Linux version; the race detector watches the Go heap alone.
func allocRecords[T any](n int, _ *slab) (recs []T, forget func()) {
	return make([]T, n), func() {}
}
