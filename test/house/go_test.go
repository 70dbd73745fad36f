package house

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

func TestEveryPackageHasAComment(t *testing.T) {
	described := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test() {
			described[s.dir] = described[s.dir] || s.Doc != nil
		}
	}
	for dir, ok := range described {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

// TestEveryPackageSaysWhatItDoes looks for the lines In:, Out: and Never: of a package's comment.
func TestEveryPackageSaysWhatItDoes(t *testing.T) {
	comments := map[string]string{}
	for _, s := range sources(t) {
		if s.program() && strings.HasPrefix(s.dir, "pkg/") {
			comments[s.dir] += "\n" + s.Doc.Text()
		}
	}
	for dir, comment := range comments {
		for _, word := range []string{"In:", "Out:", "Never:"} {
			if !strings.Contains(comment, "\n"+word) {
				t.Errorf("%s: the package comment has no line %q", dir, word)
			}
		}
	}
}

func TestEveryExportedNameHasAComment(t *testing.T) {
	for _, s := range sources(t) {
		if !s.program() || s.Name.Name == "main" {
			continue
		}
		for _, decl := range s.Decls {
			for _, name := range undocumented(decl) {
				t.Errorf("%s: %s has no comment", s.at(name), name.Name)
			}
		}
	}
}

// undocumented lists the exported names that a declaration makes without saying what they are. A comment on a group of
// constants or variables is enough for all of them, and methods of unexported types need none.
func undocumented(decl ast.Decl) (out []*ast.Ident) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
			out = append(out, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if d.Doc == nil && spec.Doc == nil && spec.Name.IsExported() {
					out = append(out, spec.Name)
				}
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					if d.Doc == nil && spec.Doc == nil && spec.Comment == nil && name.IsExported() {
						out = append(out, name)
					}
				}
			}
		}
	}
	return out
}

func receiver(d *ast.FuncDecl) string {
	switch e := d.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if name, ok := e.X.(*ast.Ident); ok {
			return name.Name
		}
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		for _, decl := range s.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: init runs without being called; call a function", s.at(f))
			}
		}
	}
}

// constantCalls are the functions whose results are as good as constants.
var constantCalls = map[string]bool{
	"errors.New": true, "fmt.Errorf": true, "regexp.MustCompile": true, "crc32.MakeTable": true,
	"netip.MustParseAddr": true, "netip.MustParsePrefix": true, "netip.AddrFrom4": true, "netip.IPv6Unspecified": true,
}

// buildVariables are set when the program is built, by the linker or as the text of a file.
var buildVariables = map[string]bool{
	"cmd/kube-nftproxy version": true, "pkg/config gatesText": true,
	"pkg/plan hashMask":   true, // tests cut hashes short
	"pkg/statuspage html": true, "pkg/statuspage css": true, "pkg/statuspage js": true,
}

// TestPackageVariablesAreConstant allows errors, tables and regular expressions, and that a type implements an interface.
func TestPackageVariablesAreConstant(t *testing.T) {
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		for _, decl := range s.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				v := spec.(*ast.ValueSpec)
				if v.Names[0].Name != "_" && !buildVariables[s.dir+" "+v.Names[0].Name] && !isConstant(v.Values) {
					t.Errorf("%s: variable %s is state of the package", s.at(v), v.Names[0].Name)
				}
			}
		}
	}
}

func isConstant(values []ast.Expr) bool {
	for _, v := range values {
		switch v := v.(type) {
		case *ast.CompositeLit:
		case *ast.CallExpr:
			if !constantCalls[selector(v.Fun)] {
				return false
			}
		default:
			return false
		}
	}
	return len(values) > 0
}

// selector returns "pkg.Name" for such an expression, and nothing for others.
func selector(n ast.Node) string {
	if s, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}
