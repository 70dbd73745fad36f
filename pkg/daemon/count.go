package daemon

import (
	"net/netip"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/cpuset"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// count opens the counters of connections to Services. With --count-connections=false, their metrics are missing
// instead of 0.
func (d *daemon) count(logger klog.Logger) (err error) {
	if d.counts, err = counters.Open(d.planner.Rules().Counters()); err != nil {
		return err
	}
	d.kernel.Count(d.counts)
	if !d.CountConnections {
		return nil
	}
	d.counts.SetZones(func(service types.NamespacedName) map[netip.Addr]string {
		return model.Zones(d.source.Get(service).Slices)
	})
	metrics.RegisterServices(d.registry, d.counts, d.MetricsServices)
	const many, file = 64, "/sys/devices/system/cpu/possible"
	if text, err := os.ReadFile(file); err == nil {
		if cpus, err := cpuset.Parse(strings.TrimSpace(string(text))); err == nil && cpus.Size() > many {
			logger.Info("Counters of connections use much memory on this machine; set --count-connections=false to "+
				"disable them", "possibleCPUs", cpus.Size(), "bytesPerElement", cpus.Size()*counterBytes)
		}
	}
	return nil
}

// counterBytes is the size of a counter in the kernel for each possible CPU: packets and bytes.
const counterBytes = 16
