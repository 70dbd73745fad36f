package console

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// absorb adds the finding that a port is in use to the finding about the program that has the port. The fix of this one
// is also the fix of the other one.
func absorb(list view.Findings) view.Findings {
	inUse := func(f view.Finding) bool {
		return f.Reason == view.PortNotBound && strings.Contains(f.What, unix.EADDRINUSE.Error())
	}
	for _, cause := range []view.Reason{view.KubeProxyRunning, view.OlderInstance, view.StandingBy} { // the most likely one first
		at := slices.IndexFunc(list, func(f view.Finding) bool { return f.Reason == cause })
		if at < 0 {
			continue
		}
		for i := range list {
			if inUse(list[i]) {
				list[at].Absorb(&list[i])
			}
		}
		return slices.DeleteFunc(list, inUse)
	}
	return list
}
