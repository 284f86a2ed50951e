package testenv

import (
	"os"
	"testing"
)

// SocketDir returns a folder of the test's for Unix sockets, whose paths may have no more than 107 bytes (unix(7)): t.TempDir's, with the test's
// name in them below a long TMPDIR, are longer.
func SocketDir(t testing.TB) string {
	t.Helper()
	const enough = 60 // for a folder, and leaves room for what is in it
	base := os.TempDir()
	if len(base) > enough {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "lbprim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
