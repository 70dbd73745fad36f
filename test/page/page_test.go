package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParts(t *testing.T) {
	const text = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
	if got, err := Part(text, "x"); got != "old\n" || err != nil {
		t.Errorf("Part(x) = %q, %v", got, err)
	}
	if _, err := Part(text, "z"); err == nil || !strings.Contains(err.Error(), "<!-- z -->") {
		t.Errorf("Part(z) = %v, want an error that says what is missing", err)
	}
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(file, "y", "new\n"); err != nil {
		t.Fatal(err)
	}
	const want = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\nnew\n<!-- /y -->\n"
	if got, err := os.ReadFile(file); string(got) != want || err != nil {
		t.Errorf("written: %q, %v; want %q", got, err, want)
	}
	if err := Write(file, "z", "new\n"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Write(z) = %v, want an error that names the file", err)
	}
}
