package lab

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// EnterNamespace gives a test a network namespace of its own, with nothing in it but a loopback interface that is down. The
// test keeps its thread, which is never used again. Without the privilege it does as ForTest does.
func EnterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if os.Getenv("REQUIRE_NETNS") != "1" {
			t.Skipf("no privilege for network namespaces: %v", err)
		}
		t.Fatalf("make a network namespace: %v", err)
	}
}

// ForTest makes a lab that is closed at the end of the test. Without the privilege for namespaces it skips the test,
// unless the environment says REQUIRE_NETNS=1, which makes a failure of it.
func ForTest(t testing.TB, c Config) *Lab {
	t.Helper()
	l, err := New(c)
	if errors.Is(err, fs.ErrPermission) && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skipf("no privilege for network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}
