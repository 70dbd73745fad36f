package daemon

import (
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"k8s.io/klog/v2"
)

// Growth of the heap between two collections, in percent. Until the first sync, most of the heap is garbage, and speed
// matters. Later, each change leaves about 30 KiB of garbage, most of it from decoding.
const (
	growthAtStart = 200
	growthLater   = 50
)

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

// settled is called after each successful sync until it returns true: until the objects are confirmed. It notifies the
// parts that wait for this sync. Then it returns memory to the system: the lists of objects and the first batch are
// garbage, several times the size of all other objects.
func (d *daemon) settled() bool {
	if !d.confirmed() {
		return false // a later sync has the changes since the snapshot
	}
	d.takeover.Synced()
	close(d.firstSync)
	d.dropUnserved()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growthLater)
	}
	go debug.FreeOSMemory()
	return true
}
