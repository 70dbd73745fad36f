package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// changed starts AwaitChange for a file and returns a channel with the result.
func changed(t *testing.T, path string) <-chan error {
	t.Helper()
	o := mustComplete(t, "--config", path)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- o.AwaitChange(ctx) }()
	return ended
}

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
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		mustEnd(t, ended)
	})
	t.Run("as a ConfigMap's volume", func(t *testing.T) {
		dir := t.TempDir()
		version := func(name, mode string) {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name, "config.conf"), header+"mode: "+mode+"\n")
			if err := errors.Join(os.Symlink(name, filepath.Join(dir, "..tmp")),
				os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))); err != nil {
				t.Fatal(err)
			}
		}
		version("..1", "nftables")
		path := filepath.Join(dir, "config.conf")
		if err := os.Symlink("..data/config.conf", path); err != nil {
			t.Fatal(err)
		}
		ended := changed(t, path)
		version("..2", "iptables")
		mustEnd(t, ended)
	})
}

// An invalid file and an unchanged content are ignored. The next valid change is noticed.
func TestAFileThatCannotBeUsedIsPassedOver(t *testing.T) {
	path := file(t, "mode: nftables\n")
	o := mustComplete(t, "--config", path)
	for _, text := range []string{"mode: x", header + "mode: userspace\n", header + "featureGates: {MultiCIDRServiceAllocator: false}\n"} {
		if usable([]byte(text)) == nil {
			t.Errorf("%q is usable", text)
		}
	}
	ended := make(chan error, 1)
	write(t, path, header+"mode: userspace\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- o.AwaitChange(ctx) }()
	select {
	case err := <-ended:
		t.Fatalf("AwaitChange() = %v for a file that can't be used", err)
	case <-time.After(200 * time.Millisecond):
	}
	write(t, path, header+"mode: ipvs\n")
	mustEnd(t, ended)
}

// If other programs have used all inotify instances, as on many nodes, the file is polled.
func TestAFileThatCannotBeWatchedIsLookedAt(t *testing.T) {
	path := file(t, "mode: nftables\n")
	o := mustComplete(t, "--config", path)
	ended := make(chan error, 1)
	go func() {
		ended <- o.awaitChange(t.Context(), func(string) (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }, time.Millisecond)
	}()
	select {
	case err := <-ended:
		t.Fatalf("without a watcher it ends with %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	write(t, path, header+"mode: iptables\n")
	mustEnd(t, ended)
}

func TestAMissingFolderCannotBeWatched(t *testing.T) {
	if w, err := watcherOf(filepath.Join(t.TempDir(), "gone", "config.conf")); err == nil {
		t.Errorf("it is watched by %v", w)
	}
}
