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

	"github.com/KimMachineGun/automemlimit/memlimit"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Growth of the heap between two collections, in percent. Until the first sync most of the heap is garbage, and speed matters.
// Later changes cause little garbage.
const (
	growthAtStart = 200
	growthLater   = 25
)

// groupFolder is the directory of the container's control group.
const groupFolder = "/sys/fs/cgroup"

// setMemory configures the garbage collector for the start. GOGC and GOMEMLIMIT take precedence. By default, the
// collector keeps the heap within nine tenths of the memory limit of the program's control group, if it has one.
func setMemory(logger klog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growthAtStart)
	}
	if _, err := memlimit.Set(); err != nil {
		logger.Info("Cannot read the memory limit of the control group", "err", err)
	}
}

// containerLimit reads the memory limit of the control group in a directory, in bytes. It supports both versions of control
// groups. It returns false if there is no limit or no such file.
func containerLimit(folder string) (int64, bool) {
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		const none = math.MaxInt64 / 2 // version 1 has a huge number for no limit, version 2 "max"
		return n, err == nil && n > 0 && n < none
	}
	return 0, false
}

// synced notifies the parts that wait for the first sync. Then it returns memory to the system. The lists of objects and the first
// batch are garbage, several times the size of all other objects.
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

// containerUse reads the memory use of a control group, including the kernel's memory for tables. It excludes inactive files,
// which the kernel drops before it kills a process.
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
		stat, _ := os.ReadFile(filepath.Join(folder, v.stat)) // without it, all memory counts
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

// nearLimit detects that the memory use is near the limit, and again only after the use has decreased.
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

// watchMemory warns before the kernel kills the program at the container's limit.
func (d *daemon) watchMemory(ctx context.Context) {
	followMemory(ctx, groupFolder, func(used, limit int64) {
		d.report(model.Problem{
			Kind: "Node", Name: types.NamespacedName{Name: d.NodeName}, Field: "memory", Event: "MemoryLimitNear", Action: "Sync",
			Reason: fmt.Sprintf("kube-nftproxy uses %d MiB of %d MiB, the memory limit of its container. The kernel kills the program at the limit: "+
				"raise resources.limits.memory", used>>20, limit>>20),
		})
	})
}

// followMemory checks a control group until the context ends, and calls near when the limit is near. The limit may change
// meanwhile. It checks more often during the start, which takes most memory and may take only a second.
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
