package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	root   = "../.."
	module = "github.com/kube-nftproxy/kube-nftproxy/"
)

// source is one Go file.
type source struct {
	*ast.File
	// name is relative to the root, dir is the file's folder.
	name, dir string
	set       *token.FileSet
}

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

// at returns the position of a node, for messages.
func (s source) at(n ast.Node) string {
	p := s.set.Position(n.Pos())
	return s.name + ":" + strings.TrimPrefix(p.String(), p.Filename+":")
}

// program reports whether the file is part of the built program, as opposed to tests and scripts.
func (s source) program() bool {
	return !s.test() && (strings.HasPrefix(s.name, "pkg/") || strings.HasPrefix(s.name, "cmd/"))
}

// files returns the source files of the repository, relative to the root.
func files(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err = filepath.Rel(root, name)
		if d.IsDir() && (name == ".git" || name == "bin" || name == ".cache") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && name != ".git" { // a file in a further work tree
			out = append(out, filepath.ToSlash(name))
		}
		return err
	})
	lab.Must(t, err)
	return out
}

// sources parses all Go files.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	for _, name := range files(t) {
		if path.Ext(name) != ".go" {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(root, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		lab.Must(t, err)
		out = append(out, source{File: f, name: name, dir: path.Dir(name), set: set})
	}
	if len(out) < 20 {
		t.Fatalf("found %d Go files, want more: is %s the root?", len(out), root)
	}
	return out
}

func mustRead(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	lab.Must(t, err)
	return string(b)
}
