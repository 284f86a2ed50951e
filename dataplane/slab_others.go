//go:build race || (!linux && !darwin)

package dataplane

// populate does nothing. See the Linux version.
func populate([]record) {}

// reserve takes memory from the Go heap: sixteen times as much as is wanted now, if that is not much.
func reserve(n, most int, _ *slab) ([]record, memory) {
	const much = 24 << 20
	return onHeap(max(n, min(16*n, most, much/int(recordSize))))
}
