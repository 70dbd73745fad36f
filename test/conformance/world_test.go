package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSweepRemovesFoldersOfDeadRuns(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, want := range map[string]bool{
		folderOf(dead.Process.Pid): false, folderOf(os.Getpid()): true, "root": true, "run-x": true,
	} {
		if err := os.MkdirAll(filepath.Join(dir, name, "etcd"), 0o755); err != nil {
			t.Fatal(err)
		}
		sweep(dir)
		_, err := os.Stat(filepath.Join(dir, name))
		if diff := cmp.Diff(want, err == nil); diff != "" {
			t.Errorf("%s is left (-want +got):\n%s", name, diff)
		}
	}
}
