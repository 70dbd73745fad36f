package lab

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

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
