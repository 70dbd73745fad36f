package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestContainerLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		file, text string
		want       int64
		ok         bool
	}{
		"version 2":           {"memory.max", "134217728\n", 128 << 20, true},
		"version 2, no limit": {"memory.max", "max\n", 0, false},
		"version 1":           {"memory/memory.limit_in_bytes", "134217728\n", 128 << 20, true},
		"version 1, no limit": {"memory/memory.limit_in_bytes", "9223372036854771712\n", 0, false},
		"garbage":             {"memory.max", "-5\n", 0, false},
		"no control group":    {"elsewhere", "1\n", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, tc.file)
			lab.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			lab.Must(t, os.WriteFile(path, []byte(tc.text), 0o600))
			got, ok := containerLimit(folder)
			if ok != tc.ok || ok && got != tc.want {
				t.Errorf("containerLimit() = %d, %t, want %d, %t", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestContainerUse(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  int64
		ok    bool
	}{
		"version 2":        {map[string]string{"memory.current": "1000\n", "memory.stat": "file 400\ninactive_file 300\nactive_file 100\n"}, 700, true},
		"version 1":        {map[string]string{"memory/memory.usage_in_bytes": "1000\n", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n"}, 700, true},
		"no details":       {map[string]string{"memory.current": "1000\n"}, 1000, true},
		"garbage":          {map[string]string{"memory.current": "many\n"}, 0, false},
		"no control group": {nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			for file, text := range tc.files {
				path := filepath.Join(folder, file)
				lab.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
				lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
			}
			if got, ok := containerUse(folder); got != tc.want || ok != tc.ok {
				t.Errorf("containerUse() = %d, %t, want %d, %t", got, ok, tc.want, tc.ok)
			}
		})
	}
}

// A warning precedes the limit, and is not repeated at each check.
func TestNearLimit(t *testing.T) {
	l := nearLimit{limit: 1000}
	for i, step := range []struct {
		used int64
		want bool
	}{{100, false}, {899, false}, {900, true}, {999, false}, {800, false}, {950, false}, {700, false}, {950, true}} {
		if got := l.reached(step.used); got != step.want {
			t.Errorf("step %d, %d of 1000: %t, want %t", i, step.used, got, step.want)
		}
	}
}

func TestFollowMemory(t *testing.T) {
	folder := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(folder, file)
		lab.Must(t, errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)))
	}
	write("memory.max", "4000")
	write("memory.current", "1500")
	said := make(chan [2]int64, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { followMemory(ctx, folder, func(used, limit int64) { said <- [2]int64{used, limit} }) })
	write("memory.max", "1600") // as after a resize of a pod
	if got, want := <-said, [2]int64{1500, 1600}; got != want {
		t.Errorf("warned of %d, want %d", got, want)
	}
	cancel()
	following.Wait()
}
