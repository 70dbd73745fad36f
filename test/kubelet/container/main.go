// Command container becomes the program of a container: in a mount namespace of its own, with the image as its root, the
// volumes in their places, and no more capabilities than it may have. Package kubelet runs it inside of a node's network
// namespace. Its argument is a file with a Spec.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
)

func main() {
	runtime.LockOSThread() // what is done to this thread, the program inherits
	fmt.Fprintln(os.Stderr, "container:", become(os.Args[1]))
	os.Exit(128)
}

// become returns only where it fails.
func become(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s kubelet.Spec
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	view := mountAll
	if s.Join != 0 {
		view = join
	}
	if err := view(s); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(s.Root), unix.Chdir("/")); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := limit(s); err != nil {
		return err
	}
	path, err := look(s)
	if err != nil {
		return err
	}
	if len(s.Filter) > 0 {
		if err := s.Filter.Install(); err != nil {
			return err
		}
	}
	return fmt.Errorf("execute %s: %w", path, execute(path, s))
}

// execute replaces the process. It tries again while the file is busy: if package kubelet starts another program while it writes this file, the
// other process has the file open for writing until its own execve.
func execute(path string, s kubelet.Spec) error {
	for range 100 {
		if err := unix.Exec(path, s.Args, s.Env); !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return unix.ETXTBSY
}

// look finds a program by the container's variable PATH.
func look(s kubelet.Spec) (string, error) {
	os.Clearenv()
	for _, variable := range s.Env {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return "", err
		}
	}
	return exec.LookPath(s.Args[0])
}

// join takes the view of the file system that a running container has.
func join(s kubelet.Spec) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", s.Join))
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // it was only read
	// A thread that shares its root with others may not enter (setns(2)).
	if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	return nil
}

// mountAll makes the container's view of the file system. What containers see read-only of /proc and /sys is read-only here;
// so is all else of it that isn't the network's, also for privileged ones: it would be the machine's.
func mountAll(s kubelet.Spec) error {
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	in := func(path string) string { return filepath.Join(s.Root, path) }
	binds := []kubelet.Bind{{From: s.Root, To: "/"}}
	binds = append(binds, s.Binds...)
	binds = append(binds, kubelet.Bind{From: "/dev/null", To: "/dev/null"}, kubelet.Bind{From: "/proc", To: "/proc"},
		kubelet.Bind{From: "/proc/sys", To: "/proc/sys", ReadOnly: true}, kubelet.Bind{From: "/sys", To: "/sys", ReadOnly: true})
	if s.Privileged {
		binds = append(binds, kubelet.Bind{From: "/proc/sys/net", To: "/proc/sys/net"})
	}
	for _, b := range binds {
		if err := bind(b.From, in(b.To), b.ReadOnly); err != nil {
			return err
		}
	}
	if !s.ReadOnlyRoot {
		return nil
	}
	return remountReadOnly(s.Root)
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	return remountReadOnly(to)
}

func remountReadOnly(path string) error {
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return nil
}

// limit leaves a program of root the given capabilities: those of the bounding set are what it has once it is executed.
func limit(s kubelet.Spec) error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(s.Capabilities, c) || s.Privileged {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if s.NoNewPrivileges {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}
