package main

import (
	"os"
	"runtime/debug"
)

// synced tells the parts that have waited for the first sync. The lists of objects and the batch that made the tables are garbage
// then, several times what stays: it goes back to the system, and the heap may grow by half from here on instead of doubling.
// Changes make little garbage, so that the collector has little more to do. GOGC, where it is set, is obeyed.
func (d *daemon) synced() {
	d.takeover.Synced()
	d.settle.Do(func() {
		const growth = 50
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(growth)
		}
		go debug.FreeOSMemory()
	})
}
