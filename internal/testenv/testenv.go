// Package testenv says what the machine a test runs on can do.
//
// A test that needs something special asks for it by name. Where it is absent the
// test is skipped with the reason, unless an environment variable requires it, as
// CI does, so that such tests cannot vanish unnoticed:
//
//	LBPRIM_SHARED=require   captures and vectors beside the repository
//	LBPRIM_NETNS=require    root and network namespaces
//	LBPRIM_SERVERS=require  real servers and tools from the distribution
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Shared returns the folder of captures and vectors that lies beside the
// repository, or skips t.
func Shared(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("testenv: no caller information")
	}
	// Built with -trimpath the file name is no path of this machine; then the
	// folder is looked for from the working directory upwards.
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	for _, dir := range append([]string{filepath.Join(root, "..", "shared", "data")}, above("shared", "data")...) {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	lack(t, "LBPRIM_SHARED", "the captures in ../shared/data are absent")
	return ""
}

// SharedFile returns the path of a file below [Shared], or skips t.
func SharedFile(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Shared(t), filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		lack(t, "LBPRIM_SHARED", "the capture "+name+" is absent")
	}
	return path
}

func above(elem ...string) (dirs []string) {
	wd, err := os.Getwd()
	if err != nil {
		return nil
	}
	for dir := wd; ; {
		dirs = append(dirs, filepath.Join(append([]string{dir}, elem...)...))
		parent := filepath.Dir(dir)
		if parent == dir {
			return dirs
		}
		dir = parent
	}
}

// NeedNetns skips t unless it may make network namespaces.
func NeedNetns(t testing.TB) {
	t.Helper()
	switch {
	case runtime.GOOS != "linux":
		lack(t, "LBPRIM_NETNS", "network namespaces need Linux")
	case os.Geteuid() != 0:
		lack(t, "LBPRIM_NETNS", "network namespaces need root")
	default:
		if _, err := exec.LookPath("ip"); err != nil {
			lack(t, "LBPRIM_NETNS", "network namespaces need ip(8) of iproute2")
		}
	}
}

// NeedServers returns the paths of the named programs, or skips t. They are looked for
// in PATH and in the folders where distributions put daemons.
func NeedServers(t testing.TB, names ...string) []string {
	t.Helper()
	paths := make([]string, 0, len(names))
	var missing []string
	for _, name := range names {
		path := find(name)
		if path == "" {
			missing = append(missing, name)
		}
		paths = append(paths, path)
	}
	if len(missing) > 0 {
		lack(t, "LBPRIM_SERVERS", "not installed: "+strings.Join(missing, ", "))
	}
	return paths
}

// NeedFiles returns the files that match a pattern, such as the examples that a package of the distribution has, or skips t.
func NeedFiles(t testing.TB, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		lack(t, "LBPRIM_SERVERS", "not installed: "+pattern)
	}
	return names
}

func find(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/news/bin"} {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o111 != 0 {
			return path
		}
	}
	return ""
}

func lack(t testing.TB, variable, why string) {
	t.Helper()
	if os.Getenv(variable) == "require" {
		t.Fatalf("%s, and %s=require", why, variable)
	}
	t.Skipf("%s (set %s=require to make this an error)", why, variable)
}
