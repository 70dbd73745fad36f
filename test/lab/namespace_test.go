package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNamesAreRemovedUnderStackedMounts mounts /run/netns over itself several times, as "ip netns add" of other programs does,
// and mounts a name twice. It runs in a process with its own mount namespace and /run/netns.
func TestNamesAreRemovedUnderStackedMounts(t *testing.T) {
	if os.Getenv("LAB_STACKED_MOUNTS") != "" {
		stackMounts(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "LAB_STACKED_MOUNTS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skipf("no privilege for mount namespaces: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func stackMounts(t *testing.T) {
	must := func(err error) {
		t.Helper()
		Must(t, err)
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	must(os.Mkdir(namesDir, 0o755))
	over := func() { must(unix.Mount(namesDir, namesDir, "none", unix.MS_BIND|unix.MS_REC, "")) }
	for _, shared := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		must(unix.Mount("", "/run", "", unix.MS_REC|shared, ""))
		name := fmt.Sprintf("knp-%d-%d-x", os.Getpid(), shared)
		must(bind(name))
		over()
		must(unix.Mount("/proc/self/ns/net", filepath.Join(namesDir, name), "bind", unix.MS_BIND, ""))
		over()
		must(unix.Mount("", namesDir, "none", unix.MS_SHARED|unix.MS_REC, ""))
		must(Unbind(name))
		if _, err := os.Lstat(filepath.Join(namesDir, name)); !os.IsNotExist(err) {
			t.Errorf("the name is still there: %v", err)
		}
		must(Unbind(name))
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		must(err)
		if strings.Contains(string(mounts), name) {
			t.Errorf("mounts are left:\n%s", mounts)
		}
	}
}
