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
	if got := processOf(unix.Gettid(), "another"); got != unix.Gettid() {
		t.Errorf("a reused number is reported as %d, want it unchanged", got)
	}
	const unused = 1 << 30
	if got := processOf(unused, name); got != unused {
		t.Errorf("an exited process is reported as %d, want it unchanged", got)
	}
}
