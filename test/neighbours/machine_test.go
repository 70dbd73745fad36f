//go:build neighbours

package neighbours

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// machine is a host with programs of a neighbour. They have their own mounts, among them a copy of the root file system in bin/neighbours, and
// their own process IDs.
type machine struct {
	t    *testing.T
	host *lab.Host
	// dir has the mounts and logs.
	dir string
	// keeper is the first process of the PID namespace.
	keeper *lab.Cmd
	pid    int
	// stops has a function for each daemon, which returns after its exit.
	stops map[string]func()
}

func (m *machine) root() string { return filepath.Join(m.dir, "merged") }

// bin returns the folder with the programs.
func bin(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	lab.Must(t, err)
	return filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "bin", "neighbours")
}

// mount starts the keeper of the neighbour's namespaces.
func (m *machine) mount() {
	m.t.Helper()
	for _, name := range []string{"merged", "upper", "work", "ready"} {
		lab.Must(m.t, os.MkdirAll(filepath.Join(m.dir, name), 0o755))
	}
	script := fmt.Sprintf(`set -e
mount -t tmpfs neighbour %[2]s/upper
mkdir %[2]s/upper/u %[2]s/upper/w
mount -t overlay overlay -o lowerdir=%[1]s/root,upperdir=%[2]s/upper/u,workdir=%[2]s/upper/w %[2]s/merged
cd %[2]s/merged
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup; mount -o remount,bind,ro sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir -p run/dbus run/lock run/xtables opt/programs run/netns
mount --rbind /run/netns run/netns
mount --bind %[1]s/programs opt/programs
echo ready
exec sleep infinity`, bin(m.t), m.dir)
	m.keeper = m.host.Command(context.Background(), "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", script)
	out, err := m.keeper.StdoutPipe()
	lab.Must(m.t, err)
	var errs strings.Builder
	m.keeper.Stderr = &errs
	lab.Must(m.t, m.keeper.Start())
	m.t.Cleanup(func() {
		_ = m.keeper.Process.Kill() // it runs until then
		_ = m.keeper.Wait()
	})
	line := make([]byte, 6)
	if _, err := io.ReadFull(out, line); err != nil {
		m.t.Fatalf("the namespaces of the neighbour: %v: %s", err, errs.String())
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.keeper.Process.Pid))
	lab.Must(m.t, err)
	if m.pid, err = strconv.Atoi(strings.Fields(string(children))[0]); err != nil {
		m.t.Fatal(err)
	}
}

// command prepares a shell command of the neighbour.
func (m *machine) command(text string) *lab.Cmd {
	cmd := m.host.Command(context.WithoutCancel(m.t.Context()), "nsenter", "-t", strconv.Itoa(m.pid), "-m", "-p", "-u", "-i", "chroot", m.root(), "sh", "-c", text)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/programs", "HOME=/root", "LANG=C.UTF-8"}
	return cmd
}

// try runs a shell command of the neighbour, and returns its output.
func (m *machine) try(text string) (string, error) {
	out, err := m.command(text).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// sh is try for commands that must succeed.
func (m *machine) sh(format string, args ...any) string {
	m.t.Helper()
	text := fmt.Sprintf(format, args...)
	out, err := m.try(text)
	if err != nil {
		m.t.Fatalf("%s: %v: %s", text, err, out)
	}
	return out
}

// answersAt returns a command that succeeds if a URL answers.
func answersAt(url string) string {
	return fmt.Sprintf(`python3 -c "import urllib.request as u; u.urlopen('%s')"`, url)
}

// daemon starts a program of the neighbour, and waits until a command succeeds.
func (m *machine) daemon(text, ready string) {
	m.t.Helper()
	name := filepath.Base(strings.Fields(text)[0])
	log, err := os.OpenFile(filepath.Join(m.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	lab.Must(m.t, err)
	cmd := m.command("echo $$ > /run/pid-" + name + "; exec " + text)
	cmd.Stdout, cmd.Stderr = log, log
	lab.Must(m.t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // a signal ends it
		close(exited)
	}()
	m.t.Cleanup(func() { <-exited; log.Close() })
	m.t.Cleanup(func() { _, _ = m.try("kill -KILL $(cat /run/pid-" + name + ")") })
	m.eventually("the start of "+name, func() error {
		out, err := m.try(ready)
		if err != nil {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%w: %s; its log: %s", err, out, text)
		}
		return nil
	})
	if m.stops == nil {
		m.stops = map[string]func(){}
	}
	m.stops[name] = func() {
		m.t.Helper()
		m.sh("kill -TERM $(cat /run/pid-%s)", name)
		select {
		case <-exited:
		case <-time.After(lab.Patience):
			m.t.Fatalf("%s does not exit", name)
		}
	}
}

// end ends a daemon with SIGTERM, and returns after its exit.
func (m *machine) end(name string) {
	m.t.Helper()
	m.stops[name]()
}

func (m *machine) eventually(what string, f func() error) {
	m.t.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < lab.Patience; time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	m.t.Fatalf("%s: %v", what, err)
}
