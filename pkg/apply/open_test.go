package apply

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestOpenNamesTheMissingCapability: without the privilege for nftables, Open fails and names the missing capability.
func TestOpenNamesTheMissingCapability(t *testing.T) {
	lab.EnterNamespace(t)
	// EnterNamespace has locked this test to a thread that no other test uses, so the thread may lose its capabilities.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	lab.Must(t, unix.Capset(&header, &none[0]))
	_, err := Open()
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("Open() = %v, want an error that names NET_ADMIN", err)
	}
}
