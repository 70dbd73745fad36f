package house

import (
	"go/ast"
	"slices"
	"testing"
)

// TestTheProgramRunsNoOther: the built program starts no other program. So an attacker in the process finds no way to that, and
// the image needs no other program.
func TestTheProgramRunsNoOther(t *testing.T) {
	calls := []string{
		"os.StartProcess", "syscall.Exec", "syscall.ForkExec", "syscall.StartProcess", "unix.Exec", "plugin.Open",
		"unix.SYS_EXECVE", "unix.SYS_EXECVEAT", "syscall.SYS_EXECVE",
	}
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		for _, imported := range imports(t, s) {
			if under(imported, []string{"os/exec", "plugin"}) {
				t.Errorf("%s: must not import %s", s.name, imported)
			}
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			if slices.Contains(calls, selector(n)) {
				t.Errorf("%s: must not use %s", s.at(n), selector(n))
			}
			return true
		})
	}
}

// TestServersAreBounded: HTTP servers are created in only one place, which sets their limits (tested there).
func TestServersAreBounded(t *testing.T) {
	const where = "pkg/beside/health/bounded.go"
	made := 0
	for _, s := range sources(t) {
		if !s.program() {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			switch name := selector(n); {
			case ok && selector(literal.Type) == "http.Server" && s.name == where:
				made++
			case ok && selector(literal.Type) == "http.Server", name == "http.ListenAndServe", name == "http.Serve", name == "httptest.NewServer":
				t.Errorf("%s: a server without limits; those of %s have them", s.at(n), where)
			}
			return true
		})
	}
	if made != 1 {
		t.Errorf("%s makes %d servers, want 1: does this test still look in the right place?", where, made)
	}
}
