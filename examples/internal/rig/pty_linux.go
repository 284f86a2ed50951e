package rig

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A Terminal is a pseudo-terminal, for programs that draw on one.
type Terminal struct {
	// TTY is the program's side.
	TTY *os.File

	mu   sync.Mutex
	text strings.Builder
	done chan struct{}
}

// NewTerminal opens a terminal of a size, until the test ends.
func NewTerminal(t testing.TB, columns, rows int) *Terminal {
	t.Helper()
	t.Setenv("TERM", "xterm")
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil { //nolint:gosec // a test's numbers
		t.Fatal(err)
	}
	x := &Terminal{TTY: tty, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		b := make([]byte, 1<<12)
		for {
			n, err := master.Read(b)
			x.mu.Lock()
			x.text.Write(b[:n])
			x.mu.Unlock()
			if err != nil { // the other side is closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		x.Close()
		master.Close()
	})
	return x
}

// Close closes the program's side, and returns when all it wrote is there.
func (x *Terminal) Close() {
	x.TTY.Close()
	<-x.done
}

// Text is all that was written.
func (x *Terminal) Text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.ReplaceAll(x.text.String(), "\r\n", "\n")
}

// Screens are what was drawn by a term.Screen, one after another, without escape sequences.
func (x *Terminal) Screens() (all []string) {
	for _, s := range strings.Split(x.Text(), "\x1b[J") {
		var plain strings.Builder
		for i := 0; i < len(s); i++ {
			if s[i] != '\x1b' {
				plain.WriteByte(s[i])
				continue
			}
			for i++; i < len(s) && (s[i] < '@' || s[i] > '~' || s[i] == '['); i++ {
			}
		}
		all = append(all, plain.String())
	}
	return all[:len(all)-1]
}
