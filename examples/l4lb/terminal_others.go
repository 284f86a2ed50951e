//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package main

import "io"

// terminal reports that there is none one can draw on.
func terminal(io.Writer) (columns, rows int, ok bool) { return 0, 0, false }
