//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// Errors of the kernel that have a known cure.
var (
	errNotExist   = fs.ErrNotExist
	errPermission = fs.ErrPermission
	errBusy       = syscall.EBUSY
)

func fileID(st os.FileInfo) any {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return nil
}
