package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// How much the heap may grow between two collections, in percent of what was in use. Until the first sync most of it is garbage, and
// there is something to be done in a hurry; from then on changes make little.
const (
	growthAtStart = 200
	growthLater   = 50
)

// setMemory prepares the collector for the start. GOGC and GOMEMLIMIT, where they are set, are obeyed; where they aren't, the
// heap stays within nine tenths of the container's memory limit while there is anything left to collect.
func setMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(growthAtStart)
	}
	if limit, ok := containerLimit("/sys/fs/cgroup"); ok && os.Getenv("GOMEMLIMIT") == "" {
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
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(growthLater)
		}
		go debug.FreeOSMemory()
	})
}
