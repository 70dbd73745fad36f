package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// changed starts AwaitChange with --config-reload=exit for a file and returns a channel with the result.
func changed(t *testing.T, path string) <-chan error {
	t.Helper()
	o := mustComplete(t, "--config", path, "--config-reload=exit", "--config-reload-jitter=0")
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- o.AwaitChange(ctx, func(bool) {}) }()
	return ended
}

// mustEnd waits for the result of AwaitChange, which must be errChanged.
func mustEnd(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, errChanged) {
			t.Errorf("AwaitChange() = %v, want %v", err, errChanged)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the change was not noticed")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestAChangedFileIsNoticed(t *testing.T) {
	t.Run("written in place", func(t *testing.T) {
		path := file(t, "mode: nftables\n")
		ended := changed(t, path)
		write(t, path, header+"mode: iptables\n")
		mustEnd(t, ended)
	})
	t.Run("renamed over", func(t *testing.T) {
		path := file(t, "mode: nftables\n")
		ended := changed(t, path)
		write(t, path+".new", header+"mode: iptables\n")
		lab.Must(t, os.Rename(path+".new", path))
		mustEnd(t, ended)
	})
	t.Run("as a ConfigMap's volume", func(t *testing.T) {
		dir := t.TempDir()
		version := func(name, mode string) {
			lab.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			write(t, filepath.Join(dir, name, "config.conf"), header+"mode: "+mode+"\n")
			if err := errors.Join(os.Symlink(name, filepath.Join(dir, "..tmp")),
				os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))); err != nil {
				t.Fatal(err)
			}
		}
		version("..1", "nftables")
		path := filepath.Join(dir, "config.conf")
		lab.Must(t, os.Symlink("..data/config.conf", path))
		ended := changed(t, path)
		version("..2", "iptables")
		mustEnd(t, ended)
	})
}

// By default, a changed file causes no exit. A file that has its previous content again is not outdated.
func TestAChangedFileIsNotAppliedByDefault(t *testing.T) {
	path := file(t, "mode: nftables\n")
	o := mustComplete(t, "--config", path)
	before, err := os.ReadFile(path)
	lab.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended, outdated := make(chan error, 1), make(chan bool)
	go func() { ended <- o.AwaitChange(ctx, func(is bool) { outdated <- is }) }()
	for _, step := range []struct {
		text string
		want bool
	}{{header + "mode: iptables\n", true}, {string(before), false}, {"mode: x", true}} {
		write(t, path+".new", step.text)
		lab.Must(t, os.Rename(path+".new", path))
		select {
		case got := <-outdated:
			lab.Same(t, step.want, got, "content %q: outdated was called with", step.text)
		case err := <-ended:
			t.Fatalf("AwaitChange() = %v", err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("AwaitChange() = %v after the context has ended", err)
	}
}

// With --config-reload=exit, nodes exit at different times. A node does not exit if its file has the previous content again,
// or an invalid one.
func TestExitsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := file(t, "mode: nftables\n")
		before, err := os.ReadFile(path)
		lab.Must(t, err)
		const nodes, jitter = 100, time.Hour
		unwatched := func(string) (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, nodes)
		for range nodes {
			o := mustComplete(t, "--config", path, "--config-reload=exit", "--config-reload-jitter="+jitter.String())
			go func() { ended <- o.awaitChange(ctx, unwatched, time.Minute, func(bool) {}) }()
		}
		write(t, path, header+"mode: iptables\n")
		time.Sleep(jitter / 2)
		if n := len(ended); n < nodes/5 || n > nodes*4/5 {
			t.Errorf("%d of %d nodes have exited in half of the time", n, nodes)
		}
		for _, text := range []string{string(before), "mode: x"} {
			write(t, path, text)
			time.Sleep(2 * time.Minute)
			exited := len(ended)
			time.Sleep(2 * jitter)
			if len(ended) != exited {
				t.Errorf("%d nodes exited although the file has the content %q", len(ended)-exited, text)
			}
			write(t, path, header+"mode: iptables\n")
			time.Sleep(jitter / 4)
		}
		time.Sleep(jitter + 2*time.Minute)
		if len(ended) != nodes {
			t.Errorf("%d of %d nodes have exited", len(ended), nodes)
		}
		cancel()
	})
}

// An invalid file and an unchanged content are ignored. The next valid change is noticed.
func TestAnInvalidFileIsIgnored(t *testing.T) {
	path := file(t, "mode: nftables\n")
	o := mustComplete(t, "--config", path, "--config-reload=exit", "--config-reload-jitter=0")
	for _, text := range []string{"mode: x", header + "mode: userspace\n", header + "featureGates: {MultiCIDRServiceAllocator: false}\n"} {
		if checkContent([]byte(text)) == nil {
			t.Errorf("%q is usable", text)
		}
	}
	ended := make(chan error, 1)
	write(t, path, header+"mode: userspace\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- o.AwaitChange(ctx, func(bool) {}) }()
	select {
	case err := <-ended:
		t.Fatalf("AwaitChange() = %v for an invalid file", err)
	case <-time.After(200 * time.Millisecond):
	}
	write(t, path, header+"mode: ipvs\n")
	mustEnd(t, ended)
}

// If other programs have used all inotify instances, as on many nodes, the program polls the file.
func TestAFileIsPolledWithoutInotify(t *testing.T) {
	path := file(t, "mode: nftables\n")
	o := mustComplete(t, "--config", path, "--config-reload=exit", "--config-reload-jitter=0")
	ended := make(chan error, 1)
	go func() {
		ended <- o.awaitChange(t.Context(), func(string) (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }, time.Millisecond, func(bool) {})
	}()
	select {
	case err := <-ended:
		t.Fatalf("awaitChange() = %v for an unchanged file without a watcher", err)
	case <-time.After(20 * time.Millisecond):
	}
	write(t, path, header+"mode: iptables\n")
	mustEnd(t, ended)
}

func TestAMissingFolderCannotBeWatched(t *testing.T) {
	if w, err := watcherOf(filepath.Join(t.TempDir(), "gone", "config.conf")); err == nil {
		t.Errorf("watcherOf() = %v for a folder that does not exist", w)
	}
}
