package house

import (
	"go/ast"
	"go/token"
	"regexp"
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

// TestEveryPackageCommentNamesInAndOut looks for the lines In:, Out: and Never: in a package's comment.
func TestEveryPackageCommentNamesInAndOut(t *testing.T) {
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

// undocumented returns the exported names that a declaration defines without a comment. A comment on a group of constants or
// variables suffices for all of them, and methods of unexported types need none.
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

// constantCalls are functions whose results are as good as constants.
var constantCalls = map[string]bool{
	"sync.OnceValue": true, // of a table that a function builds
	"errors.New":     true, "fmt.Errorf": true, "regexp.MustCompile": true, "crc32.MakeTable": true,
	"netip.MustParseAddr": true, "netip.MustParsePrefix": true, "netip.AddrFrom4": true, "netip.IPv6Unspecified": true,
}

// buildVariables are set at build time, by the linker or as the text of a file.
var buildVariables = map[string]bool{
	"cmd/kube-nftproxy version": true, "cmd/kubectl-nftproxy version": true, "pkg/config gatesText": true,
	"pkg/plan hashMask":           true, // tests shorten hashes
	"pkg/inspect/statuspage html": true, "pkg/inspect/statuspage css": true, "pkg/inspect/statuspage js": true,
}

// TestPackageVariablesAreConstant permits errors, tables, regular expressions, and assertions that a type implements an
// interface.
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

// selector returns "pkg.Name" for such an expression, and an empty string for others.
func selector(n ast.Node) string {
	if s, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// docLink matches a name in brackets, with or without its package before it and a method or field after it.
var docLink = regexp.MustCompile(`\[\*?(?:([a-z]\w*)\.)?([A-Z]\w*)(?:\.(\w+))?\]`)

// TestDocLinksResolve finds links in comments to names of the project that do not exist.
func TestDocLinksResolve(t *testing.T) {
	names := map[string]map[string]bool{} // of each package, by its name
	all := sources(t)
	for _, s := range all {
		if names[s.Name.Name] == nil {
			names[s.Name.Name] = map[string]bool{}
		}
		for _, decl := range s.Decls {
			noteNames(decl, names[s.Name.Name])
		}
	}
	for _, s := range all {
		for _, group := range s.Comments {
			for _, link := range docLink.FindAllStringSubmatch(group.Text(), -1) {
				of := link[1]
				if of == "" {
					of = s.Name.Name
				} else if names[of] == nil {
					continue // a package of another module
				}
				name := link[2]
				if link[3] != "" {
					name += "." + link[3]
				}
				if !names[of][name] {
					t.Errorf("%s: %s leads nowhere", s.at(group), link[0])
				}
			}
		}
	}
}

// noteNames records the names that a declaration defines, and those of methods and fields after the name of their type.
func noteNames(decl ast.Decl, names map[string]bool) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if name := d.Name.Name; d.Recv == nil {
			names[name] = true
		} else {
			names[receiver(d)+"."+name] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names[id.Name] = true
				}
			case *ast.TypeSpec:
				names[spec.Name.Name] = true
				ast.Inspect(spec.Type, func(n ast.Node) bool {
					if f, ok := n.(*ast.Field); ok {
						for _, id := range f.Names {
							names[spec.Name.Name+"."+id.Name] = true
						}
					}
					return true
				})
			}
		}
	}
}

// TestCommentsNameTheirFunction finds comments that begin with another name than that of their function.
func TestCommentsNameTheirFunction(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		for _, decl := range s.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Doc == nil {
				continue
			}
			first, _, _ := strings.Cut(strings.TrimSpace(d.Doc.Text()), " ")
			if !strings.EqualFold(strings.Trim(first, ",:;"), d.Name.Name) {
				t.Errorf("%s: the comment of %s begins with %q", s.at(d.Doc), d.Name.Name, first)
			}
		}
	}
}
