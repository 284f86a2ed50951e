//go:build !purego

package policy

// outside4 is outside4Go in some thirty instructions instead of a hundred. That matters less for
// their own time than for how many look-ups fit into the processor's window, so that they wait for
// memory together.
//
//go:noescape
func outside4(w *slotHead, port, src uint32) (out uint64)
