//go:build e2e

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// programs are what the demo runs and is.
type programs struct{ demo, daemon, kubernetes string }

func mustBuild(t *testing.T) programs {
	t.Helper()
	p := programs{daemon: program.BuildForTest(t)}
	var err error
	if p.demo, err = program.BuildCommand(t.Context(), t.TempDir(), "test/demo"); err != nil {
		t.Fatal(err)
	}
	if p.kubernetes, err = cluster.Build(t.Context(), t.Output(), "etcd", "kube-apiserver", "kube-proxy"); err != nil {
		t.Fatal(err)
	}
	return p
}

// performance is a demo that runs.
type performance struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	tmp    string
	marker string
}

// mustStart starts the demo.
func mustStart(t *testing.T, p programs, flags ...string) *performance {
	t.Helper()
	r := &performance{}
	r.prepare(t, p, flags...)
	r.start(t)
	return r
}

// prepare gives the demo a temporary folder of its own, and a marker in its environment that all its programs inherit.
func (r *performance) prepare(t *testing.T, p programs, flags ...string) {
	t.Helper()
	var err error
	if r.tmp, err = os.MkdirTemp("", "demo-test-"); err != nil { // a name of t.TempDir is too long for the folder of a socket
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Must(t, os.RemoveAll(r.tmp)) })
	r.marker = "DEMO_TEST=" + r.tmp
	r.cmd = exec.Command(p.demo, append([]string{"-daemon", p.daemon, "-kubernetes", p.kubernetes}, flags...)...)
	r.cmd.Env = append(os.Environ(), r.marker, "TMPDIR="+r.tmp)
	r.cmd.Stderr = t.Output()
}

func (r *performance) start(t *testing.T) {
	t.Helper()
	var err error
	if r.out, err = r.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	lab.Must(t, r.cmd.Start())
}

// readUntil copies the output up to a line that contains text, or to the end.
func (r *performance) readUntil(lines *bufio.Reader, text string, to io.Writer) error {
	for {
		line, err := lines.ReadString('\n')
		if _, err := io.WriteString(to, line); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		if strings.Contains(line, text) {
			return nil
		}
	}
}

// status waits for the end.
func (r *performance) status(t *testing.T) int {
	t.Helper()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// leftBehind lists namespaces, files and processes of the demo.
func (r *performance) leftBehind(t *testing.T) (left []string) {
	t.Helper()
	for _, pattern := range []string{
		fmt.Sprintf("/run/netns/knp-%d-*", r.cmd.Process.Pid), fmt.Sprintf("/run/netns/.knp-%d-*", r.cmd.Process.Pid),
		filepath.Join(r.tmp, "*"),
	} {
		found, err := filepath.Glob(pattern)
		lab.Must(t, err)
		left = append(left, found...)
	}
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	lab.Must(t, err)
	for _, path := range environments {
		// A process that ends meanwhile cannot be read, and is not left behind.
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(r.marker)) {
			left = append(left, path)
		}
	}
	return left
}

func (r *performance) expectNothingLeft(t *testing.T) {
	t.Helper()
	if left := r.leftBehind(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDemoToTheEnd(t *testing.T) {
	p := mustBuild(t)
	for name, flags := range map[string][]string{"folder": nil, "api": {"-api"}} {
		t.Run(name, func(t *testing.T) {
			r := mustStart(t, p, flags...)
			var out bytes.Buffer
			lines := bufio.NewReader(r.out)
			if err := r.readUntil(lines, "requests in 9 steps, all as expected", &out); err != nil {
				t.Errorf("the story has no happy end: %v", err)
			}
			if _, err := io.Copy(&out, lines); err != nil {
				t.Error(err)
			}
			if status := r.status(t); status != 0 {
				t.Errorf("status %d, want 0", status)
			}
			if t.Failed() {
				t.Log(out.String())
			}
			r.expectNothingLeft(t)
		})
	}
}

func TestDemoInterrupted(t *testing.T) {
	p := mustBuild(t)
	for _, c := range []struct {
		name, at string
		signal   os.Signal
		flags    []string
	}{
		{name: "at the headline", at: "kube-nftproxy: Services", signal: syscall.SIGINT},
		{name: "at the daemon's start", at: "$ kube-nftproxy", signal: syscall.SIGINT},
		{name: "among requests", at: " 1  ", signal: syscall.SIGTERM},
		{name: "at the change", at: " 4  ", signal: syscall.SIGINT},
		{name: "while the daemon is dead", at: "$ kill -9", signal: syscall.SIGINT},
		{name: "while kube-proxy serves", at: "table ip6 kube-proxy", signal: syscall.SIGINT},
		{name: "with etcd starting", at: "etcd and kube-apiserver start", signal: syscall.SIGINT, flags: []string{"-api"}},
		{name: "with kube-apiserver starting", at: "etcd healthy", signal: syscall.SIGTERM, flags: []string{"-api"}},
		{name: "with all started", at: " 2  ", signal: syscall.SIGHUP, flags: []string{"-api"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mustStart(t, p, c.flags...)
			var out bytes.Buffer
			lines := bufio.NewReader(r.out)
			if err := r.readUntil(lines, c.at, &out); err != nil {
				t.Errorf("no line with %q: %v", c.at, err)
			}
			if err := r.cmd.Process.Signal(c.signal); err != nil {
				t.Error(err)
			}
			if _, err := io.Copy(&out, lines); err != nil {
				t.Error(err)
			}
			if status := r.status(t); status != statusInterrupted {
				t.Errorf("status %d, want %d", status, statusInterrupted)
			}
			if t.Failed() {
				t.Log(out.String())
			}
			r.expectNothingLeft(t)
		})
	}
}

// TestDemoKeep runs commands at the prompt, on the node and in a pod.
func TestDemoKeep(t *testing.T) {
	p := mustBuild(t)
	r := &performance{}
	r.prepare(t, p, "-keep")
	r.cmd.Stdin = strings.NewReader("kube-nftproxy status; pod-2 bash -c 'cat </dev/tcp/10.96.0.10/80'\n")
	r.start(t)
	text, err := io.ReadAll(r.out)
	lab.Must(t, err)
	if status := r.status(t); status != 0 {
		t.Errorf("status %d, want 0", status)
	}
	_, prompt, _ := strings.Cut(string(text), "The node is yours")
	for _, want := range []string{"No problem found on this node.\n", " 10.244.0.12:", "all as expected"} {
		if !strings.Contains(prompt, want) {
			t.Errorf("the prompt prints no %q:\n%s", want, prompt)
		}
	}
	r.expectNothingLeft(t)
}

// A reader who has seen enough closes the pipe.
func TestDemoOutputClosed(t *testing.T) {
	p := mustBuild(t)
	r := mustStart(t, p)
	if err := r.readUntil(bufio.NewReader(r.out), " 1  ", io.Discard); err != nil {
		t.Error(err)
	}
	if err := r.out.Close(); err != nil {
		t.Error(err)
	}
	if status := r.status(t); status != statusInterrupted {
		t.Errorf("status %d, want %d", status, statusInterrupted)
	}
	r.expectNothingLeft(t)
}
