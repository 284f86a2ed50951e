//go:build linux || darwin || freebsd || netbsd || openbsd

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// terminal reports whether w is a terminal one can draw on, and its size now.
func terminal(w io.Writer) (columns, rows int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "" {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	if size.Col == 0 || size.Row == 0 { // a terminal that does not know
		return 80, 24, true
	}
	return int(size.Col), int(size.Row), true
}
