package daemon

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// How much the heap may grow between two collections, in percent of what was in use. Until the first sync most of it is garbage, and
// there is something to be done in a hurry; from then on changes make little.
const (
	growthAtStart = 200
	growthLater   = 50
)

// groupFolder has the files of the container's control group.
const groupFolder = "/sys/fs/cgroup"

// setMemory prepares the collector for the start. GOGC and GOMEMLIMIT, where they are set, are obeyed; where they aren't, the
// heap stays within nine tenths of the container's memory limit while there is anything left to collect.
func setMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growthAtStart)
	}
	if limit, ok := containerLimit(groupFolder); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// containerLimit reads the memory limit of the control group whose files are in a folder, in bytes. It knows both versions of
// control groups; where there is no limit, or no such file, it reports false.
func containerLimit(folder string) (int64, bool) {
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		const none = math.MaxInt64 / 2 // version 1 has a huge number for it, version 2 "max"
		return n, err == nil && n > 0 && n < none
	}
	return 0, false
}

// synced tells the parts that have waited for the first sync. The lists of objects and the batch that made the tables are garbage
// then, several times what stays: it goes back to the system.
func (d *daemon) synced() {
	d.takeover.Synced()
	d.settle.Do(func() {
		close(d.firstSync)
		d.dropUnserved()
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(growthLater)
		}
		go debug.FreeOSMemory()
	})
}

// containerUse reads how much of its limit a control group uses, the kernel's memory for tables included. What the kernel would rather
// drop than end anybody, files that nobody reads, isn't counted.
func containerUse(folder string) (int64, bool) {
	for _, v := range []struct{ current, stat, cached string }{
		{"memory.current", "memory.stat", "inactive_file"},
		{"memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"},
	} {
		text, err := os.ReadFile(filepath.Join(folder, v.current))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, false
		}
		stat, _ := os.ReadFile(filepath.Join(folder, v.stat)) // without it, all counts
		for line := range strings.Lines(string(stat)) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == v.cached {
				cached, _ := strconv.ParseInt(value, 10, 64)
				n -= cached
			}
		}
		return n, true
	}
	return 0, false
}

// nearLimit notices that little is left of a limit, once until there is more again.
type nearLimit struct {
	limit  int64
	warned bool
}

func (l *nearLimit) reached(used int64) bool {
	const near, far = 90, 75 // percent
	before := l.warned
	switch {
	case used >= l.limit/100*near:
		l.warned = true
	case used < l.limit/100*far:
		l.warned = false
	}
	return l.warned && !before
}

// watchMemory warns before the kernel ends the program because it has reached the container's limit.
func (d *daemon) watchMemory(ctx context.Context) error {
	followMemory(ctx, groupFolder, func(used, limit int64) {
		d.report(model.Problem{
			Kind: "Node", Name: types.NamespacedName{Name: d.NodeName}, Field: "memory", Event: "MemoryLimitNear", Action: "Sync",
			Reason: fmt.Sprintf("kube-nftproxy uses %d MiB of %d MiB, the memory limit of its container. The kernel kills the program at the limit: "+
				"raise resources.limits.memory", used>>20, limit>>20),
		})
	})
	return nil
}

// followMemory looks at a control group until the context ends, and calls near when little is left. The limit may be changed meanwhile.
// The start, which takes most, may be over in a second: it is looked at more often.
func followMemory(ctx context.Context, folder string, near func(used, limit int64)) {
	const early, often, seldom = time.Minute, 100 * time.Millisecond, 10 * time.Second
	var l nearLimit
	for start := time.Now(); ; {
		limit, limited := containerLimit(folder)
		used, known := containerUse(folder)
		if l.limit = limit; limited && known && l.reached(used) {
			near(used, limit)
		}
		pause := seldom
		if limited && time.Since(start) < early {
			pause = often
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
