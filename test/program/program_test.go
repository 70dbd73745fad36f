package program

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// cluster is enough to sync.
const cluster = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
`

// TestSyncs runs our program from its start to its end.
func TestSyncs(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	dir := t.TempDir()
	path := BuildForTest(t)
	manifest := filepath.Join(dir, "cluster.yaml")
	lab.Must(t, os.WriteFile(manifest, []byte(cluster), 0o600))
	p := ForTest(t, Config{Host: l.Node, Path: path, Args: []string{"--manifests=" + dir, "--hostname-override=node-1"}})
	first := p.Synced(t)
	// Another sync has to be caused by something.
	lab.Must(t, os.WriteFile(manifest, []byte(strings.ReplaceAll(cluster, "192.0.2.1", "192.0.2.2")), 0o600))
	second, err := p.AwaitSync(t.Context(), first, inet.IPv4)
	if err != nil || !second.After(first) {
		t.Fatalf("AwaitSync() = %v, %v, want a time after %v", second, err, first)
	}
	m, err := p.Metrics(t.Context())
	lab.Must(t, err)
	if sum, series := m.Sum("kubenftproxy_elements"); sum == 0 || series < 2 {
		t.Errorf("kubenftproxy_elements: sum %v of %d series, want elements of both families", sum, series)
	}
	for _, field := range []string{"VmRSS", "VmHWM"} {
		if mib, err := p.Memory(field); err != nil || mib < 1 || mib > 1000 {
			t.Errorf("Memory(%s) = %v MiB, %v", field, mib, err)
		}
	}
	for _, field := range []string{"Pss", "Anonymous"} {
		if mib, err := p.Rollup(field); err != nil || mib < 1 || mib > 1000 {
			t.Errorf("Rollup(%s) = %v MiB, %v", field, mib, err)
		}
	}
	lab.Must(t, p.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("it ended with %v, want status 0", err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v, want os.ErrProcessDone", err)
	}
}

// TestTellsWhyItEnded has whoever waits for a program that has ended read why.
func TestTellsWhyItEnded(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	p := ForTest(t, Config{Host: l.Node, Path: "/bin/sh", Args: []string{"-c", "echo bad luck; exit 3"}})
	_, err := p.AwaitSync(t.Context(), time.Time{})
	for _, want := range []string{"sh", "exit status 3", "bad luck"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("AwaitSync() = %v, want an error with %q", err, want)
		}
	}
	if err := p.Wait(); err == nil {
		t.Error("Wait() = nil, want the exit status")
	}
	p.Kill() // does nothing
}

func TestStartFails(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	log := filepath.Join(t.TempDir(), "log")
	if _, err := Start(t.Context(), Config{Host: l.Node, Path: "/nonexistent/kube-proxy", Log: log}); err == nil ||
		!strings.Contains(err.Error(), "start kube-proxy") {
		t.Errorf("a program that doesn't exist: %v, want an error with its name", err)
	}
	lab.Must(t, l.Close())
	if _, err := Start(t.Context(), Config{Host: l.Node, Path: "/bin/true", Log: log}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("in a host that is gone: %v, want os.ErrClosed", err)
	}
}

// TestAwaitRests has a program left alone between two looks, however often the caller would look.
func TestAwaitRests(t *testing.T) {
	const rest = 20 * time.Millisecond
	l := lab.ForTest(t, lab.Config{})
	p := ForTest(t, Config{Host: l.Node, Path: "/bin/sleep", Args: []string{"60"}, Rest: rest})
	start, looks := time.Now(), 0
	err := p.Await(t.Context(), time.Microsecond, "the third look", func(context.Context) error {
		if looks++; looks < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	// A tick that comes late may be followed by the next one at once.
	if spent := time.Since(start); err != nil || spent < rest {
		t.Errorf("three looks: %v, in %v; want at least %v", err, spent, rest)
	}
}

func TestLogTail(t *testing.T) {
	for _, tc := range []struct {
		name, log, want string
		n               int
	}{
		{"fewer lines", "a\nb\n", "a\nb\n", 3},
		{"more lines", "a\nb\nc\n", "b\nc\n", 2},
		{"empty", "", "", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &Program{config: Config{Log: filepath.Join(t.TempDir(), "log")}}
			lab.Must(t, os.WriteFile(p.Log(), []byte(tc.log), 0o600))
			lab.Same(t, tc.want, p.LogTail(tc.n), "LogTail(%d)", tc.n)
		})
	}
}
