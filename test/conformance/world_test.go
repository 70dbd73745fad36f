package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The end of a run removes its folder, and with it the temporary files of e2e.test.
func TestTemporaryFilesAreInTheFolderOfTheRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // restored at the end
	w, err := newWorld(settings{root: filepath.Join(t.TempDir(), "root")})
	if err != nil {
		t.Fatal(err)
	}
	if got := os.TempDir(); got != w.dir {
		t.Errorf("temporary files are in %s, want %s", got, w.dir)
	}
}

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
