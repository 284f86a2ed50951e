//go:build !linux

package policy

// hugePages does nothing.
func hugePages[V any]([]slot[V]) {}
