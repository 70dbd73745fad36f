package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namesDir is iproute2's directory of named namespaces.
const namesDir = "/run/netns"

// ownName matches the names of this package. The group is the ID of the process that created the namespace.
var ownName = regexp.MustCompile(`^knp-([0-9]+)-[0-9]+-`)

// errEnded means that a function given to Do called runtime.Goexit, as t.FailNow does.
var errEnded = errors.New("run in namespace: the function ended its goroutine")

// outcome is the result of a function run by onThread.
type outcome struct {
	err    error
	panics any
}

// onThread runs f on its own OS thread and returns the thread to its namespace. If that fails, the thread stays locked, so that
// the runtime destroys it with its goroutine. A panic of f is raised again in the caller, because the caller's deferred Close
// would not run otherwise.
func onThread(home *os.File, f func() error) error {
	ended := make(chan outcome, 1)
	go func() {
		runtime.LockOSThread()
		end := outcome{err: errEnded}
		defer func() {
			if p := recover(); p != nil {
				end.panics = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
			}
			if enter(home) == nil {
				runtime.UnlockOSThread()
			}
			ended <- end
		}()
		end.err = f()
	}()
	end := <-ended
	if end.panics != nil {
		panic(end.panics)
	}
	return end.err
}

// enter moves the calling thread to a namespace. Control prevents a concurrent Close of the file from releasing its number to
// another file meanwhile.
func enter(ns *os.File) error {
	raw, err := ns.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = netns.Set(netns.NsHandle(fd)) }); err != nil {
		return os.ErrClosed // Control has no other error, and does not return this one
	}
	return failed
}

// reserve returns a unique prefix, by creating a new file. If the directory cannot be written, names do not matter, and any
// prefix will do.
func reserve() (string, error) {
	if err := os.MkdirAll(namesDir, 0o755); err != nil {
		return fmt.Sprintf("knp-%d-0-", os.Getpid()), nil
	}
	for n := 0; ; n++ {
		prefix := fmt.Sprintf("knp-%d-%d-", os.Getpid(), n)
		file, err := os.OpenFile(lockPath(prefix), os.O_CREATE|os.O_EXCL, 0o444)
		switch {
		case err == nil:
			return prefix, file.Close()
		case errors.Is(err, fs.ErrPermission):
			return prefix, nil
		case !errors.Is(err, fs.ErrExist):
			return "", fmt.Errorf("reserve names: %w", err)
		}
	}
}

// unreserve releases a prefix.
func unreserve(prefix string) error {
	if err := os.Remove(lockPath(prefix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release names: %w", err)
	}
	return nil
}

// lockPath is the file that reserves a prefix.
func lockPath(prefix string) string { return filepath.Join(namesDir, "."+prefix+"lock") }

// spawn creates the host's namespace and leaves the calling thread in it. A namespace without a name, as in a user namespace
// without a mount namespace, also works and is reachable through this process.
func (h *Host) spawn(prefix string) error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	h.ns = os.NewFile(uintptr(ns), prefix+h.Name)
	if err := bind(prefix + h.Name); err == nil {
		h.Netns = prefix + h.Name
		h.Path = filepath.Join(namesDir, h.Netns)
		return nil
	}
	h.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns)
	return nil
}

// bind names the calling thread's namespace, as "ip netns attach" does.
func bind(name string) error {
	path := filepath.Join(namesDir, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	own := fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	if err := unix.Mount(own, path, "bind", unix.MS_BIND, ""); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Unbind removes the name of a network namespace. A missing name is no error. Several mounts may cover the name: "ip netns add" of another program mounts
// the directory over itself, with all mounts in it.
func Unbind(name string) error {
	path := filepath.Join(namesDir, name)
	if err := unmountAll(path); err != nil {
		return fmt.Errorf("unmount namespace %s: %w", name, err)
	}
	err := os.Remove(path)
	if errors.Is(err, unix.EBUSY) {
		err = removeCovered(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove name of namespace: %w", err)
	}
	return nil
}

// unmountAll unmounts all mounts that are visible at a path.
func unmountAll(path string) error {
	for {
		switch err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err {
		case nil:
		case unix.EINVAL, unix.ENOENT:
			return nil
		default:
			return err
		}
	}
}

// removeCovered removes a file whose mount is hidden below another mount of the directory. In a mount namespace without these
// mounts, the file can be removed, and the kernel then unmounts it in all others. The thread of that namespace exits with its
// goroutine.
func removeCovered(path string) error {
	removed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		removed <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
			if err := unmountAll(namesDir); err != nil {
				return err
			}
			if err := unmountAll(path); err != nil {
				return err
			}
			return os.Remove(path)
		}()
	}()
	return <-removed
}

// remove releases the host's namespace.
func (h *Host) remove() error {
	var errs []error
	if h.Netns != "" {
		errs = append(errs, Unbind(h.Netns))
	}
	if h.ns != nil {
		errs = append(errs, h.ns.Close())
	}
	return errors.Join(errs...)
}

// sweep removes the names that killed programs left behind. It ignores errors, because a lab works without it. It may take a
// process of another PID namespace for dead: that process loses the names, but its lab continues.
func sweep() {
	entries, err := os.ReadDir(namesDir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := entry.Name()
		if name[0] == '.' {
			name = name[1:]
		}
		match := ownName.FindStringSubmatch(name)
		if match != nil && dead(match[1]) {
			_ = Unbind(entry.Name())
		}
	}
}

// dead reports whether there is no process with that ID.
func dead(pid string) bool {
	number, err := strconv.Atoi(pid)
	return err == nil && unix.Kill(number, 0) == unix.ESRCH
}
