package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		file, text string
		want       int64
		ok         bool
	}{
		"version 2":           {"memory.max", "134217728\n", 128 << 20, true},
		"version 2, no limit": {"memory.max", "max\n", 0, false},
		"version 1":           {"memory/memory.limit_in_bytes", "134217728\n", 128 << 20, true},
		"version 1, no limit": {"memory/memory.limit_in_bytes", "9223372036854771712\n", 0, false},
		"garbage":             {"memory.max", "-5\n", 0, false},
		"no control group":    {"elsewhere", "1\n", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, tc.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, ok := containerLimit(folder)
			if ok != tc.ok || ok && got != tc.want {
				t.Errorf("containerLimit() = %d, %t, want %d, %t", got, ok, tc.want, tc.ok)
			}
		})
	}
}
