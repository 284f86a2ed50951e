package repo

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// compiledOnly are the Examples that go test does not run, for want of an Output comment, and why.
var compiledOnly = map[string]string{
	"dataplane.Example":                             "the README's program: it runs until it is interrupted, as root",
	"dataplane/afpacket.Example":                    "needs root and two interfaces",
	"dataplane/tun.Example":                         "needs root and an interface to servers",
	"healthcheck/healthchecktest.ExampleTestProber": "is a test, as it stands in a file of tests; TestHello runs the same",
}

// testsOnly are the types that nobody can use outside of a test.
var testsOnly = map[string]string{
	"healthcheck/healthchecktest.Env": "its functions take a *testing.T; ExampleTestProber shows it, and TestHello uses it",
}

// TestEveryTypeHasAnExample: every exported type of the library's packages has an Example that go test runs and whose output it
// compares: one that is named for the type, or in whose body something of the type stands.
func TestEveryTypeHasAnExample(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux has the most files, and the Examples of them")
	}
	all := public(t)
	from := exports(t, all)
	excused := map[string]bool{}
	for _, p := range all {
		shown := map[string]bool{}
		fset := token.NewFileSet()
		own := parse(t, fset, p.Dir, p.GoFiles)
		for _, tests := range []struct {
			files    []*ast.File
			external bool
		}{{parse(t, fset, p.Dir, p.TestGoFiles), false}, {parse(t, fset, p.Dir, p.XTestGoFiles), true}} {
			info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
			// Tests may use names of test files that export data does not have; what the Examples use is found all the same.
			check := types.Config{Importer: importer.ForCompiler(fset, "gc", from), Error: func(error) {}}
			files := tests.files
			if !tests.external {
				files = slices.Concat(own, files)
			}
			path := p.ImportPath
			if tests.external {
				path += "_test"
			}
			_, _ = check.Check(path, fset, files, info)
			for _, e := range doc.Examples(tests.files...) {
				name := strings.TrimSuffix(p.rel()+".Example"+e.Name, ".")
				if e.Output == "" && !e.EmptyOutput {
					if compiledOnly[name] == "" {
						t.Errorf("%s is never run: it has no Output comment", name)
					}
					excused[name] = true
					continue
				}
				typ, _, _ := strings.Cut(e.Name, "_")
				shown[typ] = true
				body := declaration(tests.files, "Example"+e.Name)
				require.NotNil(t, body, name)
				mentioned(body, p.ImportPath, info, shown)
			}
		}
		for _, name := range exportedTypes(own) {
			if name := p.rel() + "." + name; testsOnly[name] != "" {
				excused[name] = true
			} else if !shown[name[strings.LastIndexByte(name, '.')+1:]] {
				t.Errorf("%s is in no Example that runs", name)
			}
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(compiledOnly)), slices.Collect(maps.Keys(testsOnly))) {
		require.Truef(t, excused[name], "%s needs no excuse: it is gone, or runs", name)
	}
}

// public returns the packages that others can import.
func public(t *testing.T) (ps []pkg) {
	t.Helper()
	for _, p := range list(t) {
		rel := p.rel()
		if rel != "" && !p.Standard && !within(rel, "examples", "bench", "internal") && !strings.Contains(rel, "/internal/") {
			ps = append(ps, p)
		}
	}
	return ps
}

// exports returns how to look up the export data of what the packages and their tests import.
func exports(t *testing.T, ps []pkg) func(path string) (io.ReadCloser, error) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, p := range ps {
		args = append(args, p.ImportPath)
		args = append(args, p.TestImports...)
		args = append(args, p.XTestImports...)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "%s", stderr.String())
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(files[path])
	}
}

func parse(t *testing.T, fset *token.FileSet, dir string, names []string) (files []*ast.File) {
	t.Helper()
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	return files
}

func declaration(files []*ast.File, name string) *ast.BlockStmt {
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == name {
				return fn.Body
			}
		}
	}
	return nil
}

// mentioned notes the types of a package of which something stands in the body of an Example.
func mentioned(body ast.Node, path string, info *types.Info, shown map[string]bool) {
	note := func(obj *types.TypeName) {
		if obj.Pkg() != nil && obj.Pkg().Path() == path {
			shown[obj.Name()] = true
		}
	}
	var walk func(types.Type)
	walk = func(typ types.Type) {
		switch typ := typ.(type) {
		case *types.Named:
			note(typ.Obj())
		case *types.Alias:
			note(typ.Obj())
			walk(types.Unalias(typ))
		case *types.Tuple:
			for v := range typ.Variables() {
				walk(v.Type())
			}
		case *types.Map:
			walk(typ.Key())
			walk(typ.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			walk(typ.Elem())
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if tv, ok := info.Types[e]; ok && tv.Type != nil {
				walk(tv.Type)
			}
		}
		if id, ok := n.(*ast.Ident); ok {
			obj := cmp.Or(info.Defs[id], info.Uses[id])
			if name, ok := obj.(*types.TypeName); ok {
				note(name)
			} else if obj != nil && obj.Type() != nil {
				walk(obj.Type())
			}
		}
		return true
	})
}

func exportedTypes(files []*ast.File) (names []string) {
	for _, f := range files {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() {
					names = append(names, s.Name.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
