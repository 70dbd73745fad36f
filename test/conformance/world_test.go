package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The end of a run removes its folder, and with it the temporary files of e2e.test.
func TestTemporaryFilesAreInTheFolderOfTheRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // restored at the end
	w, err := newWorld(settings{root: filepath.Join(t.TempDir(), "root")})
	lab.Must(t, err)
	if got := os.TempDir(); got != w.dir {
		t.Errorf("temporary files are in %s, want %s", got, w.dir)
	}
}

func TestSweepRemovesFoldersOfDeadRuns(t *testing.T) {
	dead := exec.Command("true")
	lab.Must(t, dead.Run())
	dir := t.TempDir()
	for name, want := range map[string]bool{
		folderOf(dead.Process.Pid): false, folderOf(os.Getpid()): true, "root": true, "run-x": true,
	} {
		lab.Must(t, os.MkdirAll(filepath.Join(dir, name, "etcd"), 0o755))
		sweep(dir)
		_, err := os.Stat(filepath.Join(dir, name))
		lab.Same(t, want, err == nil, "%s is left", name)
	}
}
