package repo

import (
	"go/ast"
	"go/doc"
	"go/token"
	"strings"
	"testing"
	"unicode"
)

// TestEveryNameIsDocumented: every exported name of the library's packages, down to fields and constants, has a comment: before it, behind
// it, or before the group of lines that it is in.
func TestEveryNameIsDocumented(t *testing.T) {
	for _, p := range public(t) {
		fset := token.NewFileSet()
		files := parse(t, fset, p.Dir, p.GoFiles)
		bare := func(pos token.Pos, name string) {
			t.Errorf("%v: %s.%s has no comment", fset.Position(pos), p.rel(), name)
		}
		for _, f := range files {
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					switch recv := receiver(d); {
					case !d.Name.IsExported() || recv != "" && !ast.IsExported(recv):
					case d.Doc == nil && !ordinary(d):
						bare(d.Pos(), strings.TrimPrefix(recv+"."+d.Name.Name, "."))
					}
				case *ast.GenDecl:
					specs(fset, d, bare)
				}
			}
		}
		if docs, err := doc.NewFromFiles(fset, files, p.ImportPath); err != nil {
			t.Errorf("%s: %v", p.rel(), err)
		} else if strings.Count(docs.Doc, "\n") < 2 {
			t.Errorf("%s: the package comment is short: %q", p.rel(), docs.Doc)
		}
	}
}

// ordinary reports whether a method is one whose name says it all.
func ordinary(d *ast.FuncDecl) bool {
	return d.Recv != nil && (d.Name.Name == "Error" || d.Name.Name == "String" || d.Name.Name == "Unwrap")
}

func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func specs(fset *token.FileSet, d *ast.GenDecl, bare func(token.Pos, string)) {
	var group bool // the lines before, without an empty one between, have a comment
	last := 0
	for _, s := range d.Specs {
		line := fset.Position(s.Pos()).Line
		switch s := s.(type) {
		case *ast.TypeSpec:
			if !s.Name.IsExported() {
				continue
			}
			if s.Doc == nil && s.Comment == nil && d.Doc == nil {
				bare(s.Pos(), s.Name.Name)
			}
			switch typ := s.Type.(type) {
			case *ast.StructType:
				fields(fset, s.Name.Name, typ.Fields, about(s, d), bare)
			case *ast.InterfaceType:
				fields(fset, s.Name.Name, typ.Methods, about(s, d), bare)
			}
		case *ast.ValueSpec:
			group = s.Doc != nil || group && line == last+1
			for _, n := range s.Names {
				if n.IsExported() && !group && s.Comment == nil && d.Doc == nil {
					bare(n.Pos(), n.Name)
				}
			}
			last = fset.Position(s.End()).Line
		}
	}
}

func about(s *ast.TypeSpec, d *ast.GenDecl) string {
	if s.Doc != nil {
		return s.Doc.Text()
	}
	return d.Doc.Text()
}

// fields looks at the fields of a struct or the methods of an interface. A type's own comment may speak of them by name.
func fields(fset *token.FileSet, typ string, list *ast.FieldList, about string, bare func(token.Pos, string)) {
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(about, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		words[w] = true
	}
	var group bool
	last := 0
	for _, f := range list.List {
		line := fset.Position(f.Pos()).Line
		group = f.Doc != nil || group && line == last+1
		for _, n := range f.Names {
			if n.IsExported() && !group && f.Comment == nil && !words[n.Name] {
				bare(n.Pos(), typ+"."+n.Name)
			}
		}
		last = fset.Position(f.End()).Line
	}
}
