//go:build !race

package dataplane

import "golang.org/x/sys/unix"

// populate does nothing. See the Linux version.
func populate([]record) {}

// wantHuge does nothing. See the Linux version.
func wantHuge([]byte, bool) {}

// forgetMemory gives memory back that is needed elsewhere, and leaves it readable.
func forgetMemory(mem []byte) { _ = unix.Madvise(mem, unix.MADV_FREE) }
