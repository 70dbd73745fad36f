package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// nodeCommand is the argument with which this program becomes the first process of a node.
const nodeCommand = "first-process-of-a-node"

// order is what the first process of a node reads from its standard input, a line of JSON each: first what the node is, then programs to
// start. It exits at the end of the input, and the node's other processes die with it.
type order struct {
	// Name, Netns, Dir and Root are the node's name, its network namespace, its folder and the root file system below it.
	Name, Netns, Dir, Root string
	// Binds are folders that the node sees at other paths.
	Binds map[string]string
	// Argv is a program to start, and Log its output's file in the node.
	Argv []string
	Log  string
}

// environment is that of all programs on a node.
var environment = []string{"PATH=/programs:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}

// becomeNode is the first process of a node. Its parent has given it mount, PID, UTS and IPC namespaces, and its cgroups.
func becomeNode() error {
	// A network namespace belongs to a thread, and so do a root cgroup and what they leave to children.
	runtime.LockOSThread()
	orders := json.NewDecoder(os.Stdin)
	var node order
	if err := orders.Decode(&node); err != nil {
		return err
	}
	if err := node.enter(); err != nil {
		return fmt.Errorf("node %s: %w", node.Name, err)
	}
	fmt.Println("ready")
	go func() {
		for {
			// Orphans too. Without children there is nothing to wait for until the next order.
			if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
				unix.Nanosleep(&unix.Timespec{Nsec: 100e6}, nil) //nolint:errcheck // only a pause
			}
		}
	}()
	for {
		var program order
		if err := orders.Decode(&program); err != nil {
			return err
		}
		if err := program.start(); err != nil {
			return err
		}
	}
}

func (o order) start() error {
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = syscall.ForkExec(o.Argv[0], o.Argv, &syscall.ProcAttr{Env: environment, Files: []uintptr{0, log.Fd(), log.Fd()}})
	return err
}

// kernelSettings are values that a kubelet writes unless they are there. They belong to the machine, so the node gets files with them instead.
var kernelSettings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// enter gives this process the node's namespaces and its root file system.
func (o order) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	network, err := netns.GetFromName(o.Netns)
	if err != nil {
		return err
	}
	if err := netns.Set(network); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(o.Name)); err != nil {
		return err
	}
	root := filepath.Join(o.Dir, "root")
	at := func(path string) string { return filepath.Join(root, path) }
	m := mounter{}
	m.mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", o.Root, m.folder(o.Dir, "upper"), m.folder(o.Dir, "work")))
	m.mount("proc", at("proc"), "proc", 0, "")
	m.mount("sysfs", at("sys"), "sysfs", 0, "")
	m.mount("/dev", at("dev"), "", unix.MS_BIND|unix.MS_REC, "")
	m.mount("tmpfs", at("run"), "tmpfs", 0, "mode=755")
	m.mount("tmpfs", at("tmp"), "tmpfs", 0, "mode=1777")
	// The overlay of a container can't lie on the overlay of the node.
	for path, from := range o.Binds {
		m.mount(m.folder(from), at(path), "", unix.MS_BIND, "")
	}
	m.cgroups(at("sys/fs/cgroup"))
	for name, value := range kernelSettings {
		file := at("run/" + strings.ReplaceAll(name, "/", "_"))
		m.write(file, value+"\n")
		m.bindFile(file, at("proc/sys/"+name))
	}
	m.write(at("etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n")
	m.write(at("etc/resolv.conf"), "nameserver "+dnsAddress+"\n")
	m.write(at("etc/machine-id"), fmt.Sprintf("%032x\n", os.Getpid()))
	m.folder(root, "etc/cni/net.d")
	if m.err != nil {
		return m.err
	}
	old := m.folder(root, "run/old")
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Mounts of volumes propagate between the kubelet and containers.
	m.mount("none", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	m.err = errors.Join(m.err, unix.Unmount("/run/old", unix.MNT_DETACH))
	return m.err
}

// mounter keeps the first error.
type mounter struct{ err error }

func (m *mounter) mount(from, to, kind string, flags uintptr, data string) {
	if m.err != nil {
		return
	}
	if m.folder(to); m.err == nil {
		if err := unix.Mount(from, to, kind, flags, data); err != nil {
			m.err = fmt.Errorf("mount %s at %s: %w", from, to, err)
		}
	}
}

func (m *mounter) bindFile(from, to string) {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil && m.err == nil {
		m.err = fmt.Errorf("mount %s at %s: %w", from, to, err)
	}
}

// folder makes a folder and returns its path.
func (m *mounter) folder(parts ...string) string {
	path := filepath.Join(parts...)
	if err := os.MkdirAll(path, 0o755); err != nil && m.err == nil {
		m.err = err
	}
	return path
}

func (m *mounter) write(file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil && m.err == nil {
		m.err = err
	}
}

// cgroups mounts the node's cgroups: all controllers of the machine's version 1, or version 2.
func (m *mounter) cgroups(at string) {
	hierarchies, err := readHierarchies()
	if err != nil {
		m.err = err
		return
	}
	if len(hierarchies) == 1 {
		m.mount("cgroup2", at, "cgroup2", 0, "")
		// A group with processes of its own can't give controllers to others.
		m.folder(at, "init")
		m.write(filepath.Join(at, "init", "cgroup.procs"), "1")
		m.write(filepath.Join(at, "cgroup.subtree_control"), controllers)
		return
	}
	m.mount("tmpfs", at, "tmpfs", 0, "mode=755")
	for _, h := range hierarchies {
		if h.controllers != "" {
			m.mount("cgroup", filepath.Join(at, strings.TrimPrefix(h.controllers, "name=")), "cgroup", 0, h.option())
		}
	}
}

// controllers are those that a kubelet needs.
const controllers = "+cpu +cpuset +io +memory +pids"

// hierarchy is one of /proc/self/cgroup: its controllers, none for version 2, and the group of this process.
type hierarchy struct{ controllers, group string }

func readHierarchies() (out []hierarchy, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("unknown line in /proc/self/cgroup: %q", line)
		}
		out = append(out, hierarchy{fields[1], fields[2]})
	}
	return out, nil
}

func (h hierarchy) option() string {
	if strings.HasPrefix(h.controllers, "name=") {
		return "none," + h.controllers
	}
	return h.controllers
}

// groups returns the folders of the cgroups of a node.
func groups(node string) (folders []string, err error) {
	hierarchies, err := readHierarchies()
	if err != nil {
		return nil, err
	}
	const root = "/sys/fs/cgroup"
	if len(hierarchies) == 1 {
		return []string{filepath.Join(root, node)}, nil
	}
	for _, h := range hierarchies {
		if h.controllers != "" {
			folders = append(folders, filepath.Join(root, strings.TrimPrefix(h.controllers, "name="), h.group, node))
		}
	}
	return folders, nil
}

// join makes the cgroups of a node, and puts its first process into them.
func join(node string, pid int) error {
	folders, err := groups(node)
	if err != nil {
		return err
	}
	if len(folders) == 1 { // best effort: what is missing shows when the node wants it
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte(controllers), 0o644)
	}
	for _, folder := range folders {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		// A new cpuset of version 1 is empty and takes no process.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(filepath.Dir(folder), name)); err == nil && len(folders) > 1 {
				if err := os.WriteFile(filepath.Join(folder, name), value, 0o644); err != nil {
					return err
				}
			}
		}
		if _, err := os.Stat(filepath.Join(folder, "cgroup.clone_children")); err == nil {
			if err := os.WriteFile(filepath.Join(folder, "cgroup.clone_children"), []byte("1"), 0o644); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), fmt.Append(nil, pid), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// leave removes the cgroups of a node whose processes have ended.
func leave(node string) error {
	folders, err := groups(node)
	for _, folder := range folders {
		// Groups are folders whose files can't be removed and need not be.
		out, findErr := exec.Command("find", folder, "-depth", "-type", "d", "-delete").CombinedOutput()
		if _, statErr := os.Stat(folder); statErr == nil {
			err = errors.Join(err, findErr, fmt.Errorf("remove cgroup %s: %s", folder, out))
		}
	}
	return err
}
