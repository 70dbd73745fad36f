package lab

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// EnterNamespace gives a test a new network namespace, whose only interface is a loopback interface that is down. The test keeps
// its thread, which is not reused. Without the privilege it behaves as ForTest.
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

// ForTest returns a lab that is closed at the end of the test. Without the privilege for namespaces it skips the test, or fails
// it if REQUIRE_NETNS=1.
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
