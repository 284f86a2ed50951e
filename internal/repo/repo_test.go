package repo

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lbprim/lbprim"

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath                string
	Dir                       string
	Deps                      []string
	Imports                   []string
	GoFiles                   []string
	CgoFiles                  []string
	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
	Standard                  bool
}

// rel is the package's path inside the module, "" for packages of others.
func (p pkg) rel() string {
	rest, ok := strings.CutPrefix(p.ImportPath, module+"/")
	if !ok {
		return ""
	}
	return rest
}

var packages = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Deps,Imports,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles,TestImports,XTestImports,Standard", "./...")
	cmd.Dir = root()
	// Linux has the most files; the answer must not depend on where the test runs.
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New("go list: " + err.Error() + ": " + stderr.String())
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func root() string {
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		panic(err)
	}
	return dir
}

func list(t *testing.T) []pkg {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command is not in PATH")
	}
	all, err := packages()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func within(rel string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return rel == d || strings.HasPrefix(rel, d+"/") })
}

var primitives = []string{"policy", "clienttable", "healthcheck", "sslpersist", "steering"}

// primitiveDeps are the modules a primitive package may pull into an importer's build.
var primitiveDeps = []string{"golang.org/x/net", "golang.org/x/sys", "golang.org/x/text", "github.com/hashicorp/golang-lru/v2"}

func TestImportDirections(t *testing.T) {
	for _, p := range list(t) {
		rel := p.rel()
		top, _, _ := strings.Cut(rel, "/")
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, "github.com/google/gopacket") {
				require.Truef(t, within(rel, "dataplane/pcapdev", "examples"), "%s: gopacket is for tests, replay and tools, yet %s is built with it", rel, dep)
			}
			if strings.HasPrefix(dep, "github.com/stretchr/testify") {
				require.Truef(t, within(rel, "internal/repo", "internal/testenv", "internal/netns", "healthcheck/healthchecktest"), "%s is built with %s outside of tests", rel, dep)
			}
			if strings.HasPrefix(dep, "github.com/hashicorp/memberlist") {
				require.Truef(t, within(rel, "steering/cluster", "examples"), "%s: memberlist belongs under steering/cluster", rel)
				require.Falsef(t, within(rel, "steering/cluster/flowshare", "steering/cluster/internal"), "%s: flows are shared without memberlist", rel)
			}
			inner, ours := strings.CutPrefix(dep, module+"/")
			switch {
			case within(rel, primitives...):
				if ours {
					require.Truef(t, within(inner, top, "internal"), "%s imports %s: primitive packages never import each other or the data plane", rel, inner)
				} else if strings.Contains(strings.SplitN(dep, "/", 2)[0], ".") {
					allowed := primitiveDeps
					if within(rel, "steering/cluster") {
						allowed = append(slices.Clone(allowed), "github.com/hashicorp", "github.com/google/btree", "github.com/miekg/dns", "github.com/sean-/seed", "github.com/armon/go-metrics")
					}
					require.Truef(t, within(dep, allowed...), "%s is built with %s, which is not among %v", rel, dep, allowed)
				}
			case within(rel, "internal") && ours:
				require.Truef(t, within(inner, "internal"), "%s imports %s: internal packages know no others", rel, inner)
			case within(rel, "dataplane") && ours:
				require.Falsef(t, within(inner, "examples", "bench"), "%s imports %s", rel, inner)
			}
			// A device satisfies dataplane.Device by its methods alone.
			if within(rel, "dataplane/tun", "dataplane/afpacket", "dataplane/pcapdev", "dataplane/devtest") {
				require.NotEqualf(t, "dataplane", inner, "%s imports dataplane: devices satisfy its interface structurally", rel)
			}
		}
		if within(rel, "examples") && !within(rel, "examples/internal") {
			for _, dep := range p.Imports {
				inner, ours := strings.CutPrefix(dep, module+"/")
				require.Falsef(t, ours && within(inner, "internal"), "%s imports %s: examples use exported packages and examples/internal only", rel, inner)
			}
		}
	}
}

func TestNoCgo(t *testing.T) {
	for _, p := range list(t) {
		require.Emptyf(t, p.CgoFiles, "%s uses cgo", p.ImportPath)
	}
}

// parsed calls f for every Go file of the module that is not a test of another
// module, with its path relative to the root.
func parsed(t *testing.T, mode parser.Mode, f func(rel string, file *ast.File, src []byte)) {
	t.Helper()
	fset := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root() && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, src, mode)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root(), path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(rel), file, src)
		return nil
	}))
}

func TestOnePackageComment(t *testing.T) {
	comments := map[string][]string{}
	parsed(t, parser.ParseComments|parser.PackageClauseOnly, func(rel string, file *ast.File, _ []byte) {
		if strings.HasSuffix(rel, "_test.go") {
			return
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		if _, ok := comments[dir]; !ok {
			comments[dir] = nil
		}
		if file.Doc != nil {
			comments[dir] = append(comments[dir], rel)
			want := "Package " + file.Name.Name + " "
			if file.Name.Name == "main" {
				want = ""
			}
			require.Truef(t, strings.HasPrefix(file.Doc.Text(), want), "%s: the package comment begins with %q", rel, want)
		}
	})
	for dir, files := range comments {
		require.Lenf(t, files, 1, "package in %s: exactly one package comment, not %d: %v", dir, len(files), files)
	}
}

func TestFileLength(t *testing.T) {
	const most = 600
	parsed(t, parser.PackageClauseOnly, func(rel string, _ *ast.File, src []byte) {
		if n := bytes.Count(src, []byte("\n")); n > most {
			t.Errorf("%s has %d lines; one concept a file, at most %d lines", rel, n, most)
		}
	})
}

// TestNoHiddenState refuses what makes a library surprising: init functions, and
// package variables that are assigned after their declaration.
func TestNoHiddenState(t *testing.T) {
	parsed(t, parser.SkipObjectResolution, func(rel string, file *ast.File, _ []byte) {
		if strings.HasSuffix(rel, "_test.go") || within(rel, "examples", "bench") {
			return
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function", rel)
			}
		}
	})
}

// TestTopLevel keeps the root as users know it.
func TestTopLevel(t *testing.T) {
	want := []string{"CHANGELOG.md", "LICENSE", "README.md", "bench", "clienttable", "dataplane", "examples", "go.mod", "go.sum", "healthcheck", "internal", "policy", "sslpersist", "steering"}
	entries, err := os.ReadDir(root())
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		require.Containsf(t, want, e.Name(), "unexpected entry %q at the top level", e.Name())
	}
}
