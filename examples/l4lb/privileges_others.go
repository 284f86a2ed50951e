//go:build !linux

package main

// dropPrivileges does nothing: balancing needs Linux.
func dropPrivileges() error { return nil }
