package console

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// causesOf has the causes of findings, the most likely one first. The fix of a cause is also the fix of the finding.
var causesOf = map[view.Reason][]view.Reason{
	view.PortNotBound: {view.KubeProxyRunning, view.OlderInstance, view.StandingBy},
}

// absorb adds each finding whose cause is another finding to that finding.
func absorb(list []view.Finding) (out []view.Finding) {
	causeOf := func(f *view.Finding) int {
		if f.Reason == view.PortNotBound && !strings.Contains(f.What, unix.EADDRINUSE.Error()) {
			return -1
		}
		for _, reason := range causesOf[f.Reason] {
			if i := slices.IndexFunc(list, func(f view.Finding) bool { return f.Reason == reason }); i >= 0 {
				return i
			}
		}
		return -1
	}
	for i := range list {
		if at := causeOf(&list[i]); at >= 0 {
			list[at].Absorb(&list[i])
		}
	}
	for i := range list {
		if causeOf(&list[i]) < 0 {
			out = append(out, list[i])
		}
	}
	return out
}
