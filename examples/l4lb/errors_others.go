//go:build !unix

package main

import (
	"errors"
	"io/fs"
)

// Errors of the kernel that have a known cure.
var (
	errNotExist   = fs.ErrNotExist
	errPermission = fs.ErrPermission
	errBusy       = errors.New("busy")
)
