//go:build !amd64 || purego

package policy

func outside4(w *slotHead, port, src uint32) (out uint64) { return outside4Go(w, port, src) }
