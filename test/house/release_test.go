package house

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestReleaseVerifyRefuses changes the files of a release in each way that hack/release-verify.sh must detect.
func TestReleaseVerifyRefuses(t *testing.T) {
	write := func(t *testing.T, file, content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(t *testing.T, dir string){
		"":             func(*testing.T, string) {},
		"changed file": func(t *testing.T, dir string) { write(t, dir+"/b", "changed") },
		"added file":   func(t *testing.T, dir string) { write(t, dir+"/c", "added") },
		"missing file": func(t *testing.T, dir string) {
			if err := os.Remove(dir + "/b"); err != nil {
				t.Fatal(err)
			}
		},
		"added link": func(t *testing.T, dir string) {
			if err := os.Symlink("a", dir+"/c"); err != nil {
				t.Fatal(err)
			}
		},
		"no checksums":    func(t *testing.T, dir string) { write(t, dir+"/SHA256SUMS", "") },
		"invalid line":    func(t *testing.T, dir string) { write(t, dir+"/SHA256SUMS", "a\nb\n") },
		"second checksum": func(t *testing.T, dir string) { write(t, dir+"/SHA256SUMS", sums("a", "b")+sums("b")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/a", "a")
			write(t, dir+"/b", "b")
			write(t, dir+"/SHA256SUMS", sums("a", "b"))
			change(t, dir)
			cmd := exec.CommandContext(t.Context(), "hack/release-verify.sh", dir)
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); (err == nil) != (name == "") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// sums lists files whose contents are their names.
func sums(names ...string) (out string) {
	for _, name := range names {
		out += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(name)), name)
	}
	return out
}
