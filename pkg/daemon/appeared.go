package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// familiesEvery is the interval of checks of the host's IP families. A check reads two files.
const familiesEvery = 30 * time.Second

// appeared returns an IP family that the host has now and did not have at the start, if there is one.
func (d *daemon) appeared() (inet.Family, bool) {
	for _, f := range host.Families() {
		if !slices.Contains(d.hostFamilies, f) {
			return f, true
		}
	}
	return 0, false
}

// awaitFamily returns an error when another IP family appears on the host: after a restart, the process serves it.
func (d *daemon) awaitFamily(ctx context.Context) error {
	for tick := time.NewTicker(familiesEvery); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-d.addressed:
		}
		if f, appeared := d.appeared(); appeared {
			return fmt.Errorf("this host has %s now; at the start of the process, it had only %v. The process exits, "+
				"and serves both after its restart",
				f, d.hostFamilies)
		}
	}
}

// lookForFamilies requests a check of the families after an address change.
func (d *daemon) lookForFamilies() {
	select {
	case d.addressed <- struct{}{}:
	default: // an earlier request is pending
	}
}

// dropUnserved deletes tables of an earlier process in IP families that this one does not serve.
func (d *daemon) dropUnserved() {
	dropped, err := d.kernel.DropUnserved(d.families)
	for _, f := range dropped {
		klog.Background().Info("Deleted the table of an IP family that is not served: an earlier process had left it",
			"ipFamily", f)
	}
	if err != nil {
		klog.Background().Error(err, "Failed to delete the table of an IP family that is not served")
	}
}
