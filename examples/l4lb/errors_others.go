//go:build !unix

package main

import (
	"errors"
	"io/fs"
	"os"
)

// Errors of the kernel that have a known cure.
var (
	errNotExist   = fs.ErrNotExist
	errPermission = fs.ErrPermission
	errBusy       = errors.New("busy")
)

func fileID(os.FileInfo) any { return nil }
