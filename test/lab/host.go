package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync/atomic"
)

// Host is one machine or pod of a Lab: a network namespace with an address of each family.
type Host struct {
	// Name is the host's name in the lab, for example "pod-0". Its servers answer with it.
	Name string
	// Netns is the name of its namespace, for "ip netns exec"; empty if namespaces cannot have names.
	Netns string
	// Path is a file that refers to the namespace, for nsenter --net=. It is valid until the lab is closed.
	Path string
	// Device is the node's device for this host, "eth0" for the client; empty for the node itself. In a lab with a bridge, those
	// of the pods are its ports.
	Device string
	// IPv4 and IPv6 are the host's addresses; for the node, its primary ones.
	IPv4, IPv6 netip.Addr

	lab *Lab
	ns  *os.File
	// ports counts the source ports used by probes.
	ports atomic.Uint32
}

// Do runs f in the host's namespace, on its own OS thread, and returns its error. Sockets, processes and files of /proc/sys/net
// that f itself opens belong to the host; goroutines that f starts are not in the namespace. f may call Do of other hosts. It
// must not call t.FailNow. After Close, errors.Is(err, os.ErrClosed).
func (h *Host) Do(f func() error) error {
	return onThread(h.lab.home, func() error {
		if err := enter(h.ns); err != nil {
			return fmt.Errorf("enter namespace of %s: %w", h.Name, err)
		}
		return f()
	})
}

// Sysctl sets a value below /proc/sys/net of the host, for example Sysctl("ipv4/ip_forward", "1").
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error { return writeSysctl(setting{key, value}) })
}

// writeSysctl sets a value of the calling thread's namespace.
func writeSysctl(s setting) error {
	file, err := os.OpenFile(filepath.Join("/proc/sys/net", s.key), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	_, err = file.WriteString(s.value)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("set sysctl %s to %q: %w", s.key, s.value, err)
	}
	return nil
}

// Addr returns the host's address of the same family as like.
func (h *Host) Addr(like netip.Addr) netip.Addr {
	if like.Is4() {
		return h.IPv4
	}
	return h.IPv6
}

// Addrs returns the host's IPv4 and its IPv6 address, for loops over the families.
func (h *Host) Addrs() [2]netip.Addr { return [2]netip.Addr{h.IPv4, h.IPv6} }

// Command prepares a program to run in the host's namespace. It is killed when ctx ends. The file system is the ordinary one:
// /sys in particular still shows the devices of the namespace in which the lab was started. If the variable KNP_SYSCALLS names a folder, strace
// writes the system calls of kube-nftproxy into it, for hack/seccomp.sh.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	if folder := os.Getenv("KNP_SYSCALLS"); folder != "" && traced.MatchString(filepath.Base(name)) {
		out := filepath.Join(folder, fmt.Sprintf("%d-%d", os.Getpid(), traces.Add(1)))
		// With -D, the traced program is the child, not strace.
		name, args = "strace", append([]string{"-D", "-f", "-qq", "-o", out, name}, args...)
	}
	return &Cmd{Cmd: exec.CommandContext(ctx, name, args...), host: h}
}

// traced matches the programs that are kube-nftproxy, or become it.
var traced = regexp.MustCompile(`^(kube-nftproxy|container|setpriv|.*\.test)$`)

// traces counts the traced commands.
var traces atomic.Uint64

// Cmd is an exec.Cmd whose process starts in a Host's namespace.
type Cmd struct {
	*exec.Cmd
	host *Host
}

// Start does the same as exec.Cmd.Start in the namespace: a new process inherits the namespace of the thread that starts it.
func (c *Cmd) Start() error { return c.host.Do(c.Cmd.Start) }

// Run does the same as exec.Cmd.Run in the namespace.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output does the same as exec.Cmd.Output in the namespace.
func (c *Cmd) Output() (out []byte, err error) {
	err = c.host.Do(func() error {
		out, err = c.Cmd.Output()
		return err
	})
	return out, err
}

// CombinedOutput does the same as exec.Cmd.CombinedOutput in the namespace.
func (c *Cmd) CombinedOutput() (out []byte, err error) {
	err = c.host.Do(func() error {
		out, err = c.Cmd.CombinedOutput()
		return err
	})
	return out, err
}
