//go:build !linux

package sdnotify

// Reloading is the state at the start of a reload; Ready ends it.
func Reloading() string { return "RELOADING=1" }
