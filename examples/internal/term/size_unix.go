//go:build linux || darwin || freebsd || netbsd || openbsd

package term

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Size reports whether w is a terminal one can draw on, and its size now.
func Size(w io.Writer) (columns, rows int, ok bool) {
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
