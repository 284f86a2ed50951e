package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryTypeHasAnExample: every exported type of the library's packages is named in an Example that runs, or is what a
// name used there has for its type, as far as the syntax shows: a field, a result, a parameter, or a constant.
func TestEveryTypeHasAnExample(t *testing.T) {
	for _, p := range list(t) {
		rel := p.rel()
		if rel == "" || p.Standard || within(rel, "examples", "bench", "internal") || strings.Contains(rel, "/internal/") {
			continue
		}
		types, uses := map[string]bool{}, map[string][]string{}
		reached := map[string]bool{}
		fset := token.NewFileSet()
		entries, err := os.ReadDir(p.Dir)
		require.NoError(t, err)
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, e.Name()), nil, 0)
			require.NoError(t, err)
			if strings.HasSuffix(e.Name(), "_test.go") {
				examples(f, reached)
				continue
			}
			declared(f, types, uses)
		}
		for grown := true; grown; {
			grown = false
			for name := range reached {
				for _, to := range uses[name] {
					if !reached[to] {
						reached[to], grown = true, true
					}
				}
			}
		}
		for name := range types {
			if !reached[name] {
				t.Errorf("%s.%s is in no Example", rel, name)
			}
		}
	}
}

// examples notes every name in the Examples of a file.
func examples(f *ast.File, reached map[string]bool) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(fn.Name.Name, "Example") {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				reached[id.Name] = true
			}
			return true
		})
	}
}

// declared notes the exported types of a file, and which names lead to which others: functions and methods to what they take and
// return, types to what they are made of, constants to their type.
func declared(f *ast.File, types map[string]bool, uses map[string][]string) {
	link := func(from string, node ast.Node) {
		if node == nil {
			return
		}
		ast.Inspect(node, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.IsExported() {
				uses[from] = append(uses[from], id.Name)
			}
			return true
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			link(d.Name.Name, d.Type)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						types[s.Name.Name] = true
					}
					link(s.Name.Name, s.Type)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if s.Type != nil {
							link(n.Name, s.Type)
						}
					}
				}
			}
		}
	}
}
