package nft

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestThreadIDsBecomeProcessIDs: the kernel reports a thread ID, and the program shows the process ID.
func TestThreadIDsBecomeProcessIDs(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	comm, err := os.ReadFile("/proc/thread-self/comm")
	lab.Must(t, err)
	name := strings.TrimSpace(string(comm))
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %q, %v, want some", threads, err)
	}
	if got := processOf(unix.Gettid(), name); got != os.Getpid() {
		t.Errorf("thread %d is of process %d, want %d", unix.Gettid(), got, os.Getpid())
	}
	lab.Same(t, unix.Gettid(), processOf(unix.Gettid(), "another"), "a reused number is reported")
	const unused = 1 << 30
	lab.Same(t, unused, processOf(unused, name), "an exited process is reported")
}
