//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package term

import "io"

// Size reports whether w is a terminal one can draw on, and its size now: none is known here.
func Size(io.Writer) (columns, rows int, ok bool) { return 0, 0, false }
