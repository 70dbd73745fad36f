package apply

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Whoever may not use nftables is told at once what is missing, and doesn't look ready meanwhile.
func TestOpenSaysWhatIsMissing(t *testing.T) {
	lab.EnterNamespace(t)
	// The thread that EnterNamespace has made this test's own is never used again, and may lose what it likes.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	_, err := Open()
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("Open() = %v, want an error that names NET_ADMIN", err)
	}
}
