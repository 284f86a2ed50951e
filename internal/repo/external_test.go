package repo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// memberlist is what comes with steering/cluster.
var memberlist = []string{
	"github.com/hashicorp/memberlist", "github.com/hashicorp/errwrap", "github.com/hashicorp/go-immutable-radix", "github.com/hashicorp/go-metrics",
	"github.com/hashicorp/go-msgpack/v2", "github.com/hashicorp/go-multierror", "github.com/hashicorp/go-sockaddr", "github.com/hashicorp/golang-lru",
	"github.com/hashicorp/golang-lru/v2", "github.com/google/btree", "github.com/miekg/dns", "github.com/sean-/seed", "golang.org/x/net", "golang.org/x/sys",
}

// external is what programs of others print that use one package alone, and the modules of third parties that may come
// with it. The lists are short on purpose; think twice before one grows.
var external = []struct {
	name, prints string
	modules      []string
}{
	{"policy", "policy: staff farm", []string{"golang.org/x/sys"}},
	{"clienttable", "clienttable: 3 true", []string{"golang.org/x/sys"}},
	{"healthcheck", "healthcheck: web1 active", []string{"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text"}},
	{"sslpersist", "sslpersist: shop.example, session ID of 32 bytes, <nil>", []string{"github.com/hashicorp/golang-lru/v2"}},
	{"steering", "steering: 10 20", nil},
	{"intercept", "intercept: redirect", []string{"github.com/hashicorp/golang-lru/v2"}},
	{"path", "path: sent mpls", nil},
	{"cluster", "cluster: [lb1] steady", memberlist},
	{"dataplane", "dataplane: forwarded web web1", []string{"golang.org/x/sys", "github.com/hashicorp/golang-lru/v2", "github.com/dchest/siphash"}},
	{"all", "all: 20", append([]string{
		"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text", "github.com/hashicorp/golang-lru/v2", "github.com/dchest/siphash", "github.com/google/gopacket",
	}, memberlist...)},
}

// TestExternalModule builds and runs, from a module of its own, a program for each package, and lists its modules.
func TestExternalModule(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is not in PATH")
	}
	dir := filepath.Join(root(), "internal", "repo", "testdata", "external")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			require.Truef(t, slices.ContainsFunc(external, func(x struct {
				name, prints string
				modules      []string
			}) bool {
				return x.name == e.Name()
			}), "external/%s is not in this test", e.Name())
		}
	}
	// The versions are those of this module, whatever they are today.
	mod := filepath.Join(t.TempDir(), "external.mod")
	require.NoError(t, os.WriteFile(mod, []byte(read(t, "internal/repo/testdata/external/go.mod")), 0o600))
	require.NoError(t, os.WriteFile(strings.TrimSuffix(mod, "mod")+"sum", []byte(read(t, "go.sum")), 0o600))
	command := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", slices.Insert(args, 1, "-mod=mod", "-modfile="+mod)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoErrorf(t, err, "go %v: %s", args, stderr.String())
		return strings.TrimSpace(string(out))
	}
	bin := t.TempDir() + string(filepath.Separator)
	command("build", "-o", bin, "./...")
	of := map[string]string{} // the module of a package
	for line := range strings.Lines(command("list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./...")) {
		path, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		of[path] = name
	}
	deps := map[string][]string{}
	for line := range strings.Lines(command("list", "-f", "{{.Name}} {{.ImportPath}} {{range .Deps}}{{.}} {{end}}", "./...")) {
		f := strings.Fields(line)
		deps[strings.TrimPrefix(f[1], "example.com/external/")] = f[2:]
	}
	for _, x := range external {
		out, err := exec.Command(bin + x.name).CombinedOutput()
		require.NoErrorf(t, err, "%s: %s", x.name, out)
		require.Equal(t, x.prints, strings.TrimSpace(string(out)))
		require.NotEmpty(t, deps[x.name])
		for _, d := range deps[x.name] {
			if m := of[d]; m != "" && m != module {
				require.Containsf(t, x.modules, m, "a program that imports %s alone is built with %s", x.name, m)
			}
		}
	}
}
