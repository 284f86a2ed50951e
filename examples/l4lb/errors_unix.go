//go:build unix

package main

import (
	"io/fs"
	"syscall"
)

// Errors of the kernel that have a known cure.
var (
	errNotExist   = fs.ErrNotExist
	errPermission = fs.ErrPermission
	errBusy       = syscall.EBUSY
)
