package lab

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
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

// NeedIPVS skips a test if the kernel has no ipvs, or fails it if REQUIRE_IPVS is set. The kernels of hack/kernels.sh have ipvs.
func NeedIPVS(t testing.TB) {
	t.Helper()
	// If modules cannot be loaded, the feature is built in or missing.
	_ = exec.Command("modprobe", "-a", "ip_vs", "ip_vs_rr", "dummy").Run()
	_, err := os.Stat("/proc/net/ip_vs")
	switch {
	case err != nil && os.Getenv("REQUIRE_IPVS") != "":
		t.Fatal("the kernel has no ipvs, but REQUIRE_IPVS is set")
	case err != nil:
		t.Skip("the kernel has no ipvs, unlike those of hack/kernels.sh")
	}
}
