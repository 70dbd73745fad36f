package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // registers rest_client_* and hands them to client-go
)

// RestClient returns a gatherer of client-go's metrics, rest_client_*. client-go's registry also has process_* and
// go_*, which the program has already and which dominate the time of a scrape. RestClient unregisters them there.
func RestClient() prometheus.Gatherer {
	for _, c := range process() {
		legacyregistry.Registerer().Unregister(c) // identified by its descriptors
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := legacyregistry.DefaultGatherer.Gather()
		var list []*dto.MetricFamily
		for _, f := range all {
			if strings.HasPrefix(f.GetName(), "rest_client_") {
				list = append(list, f)
			}
		}
		return list, err
	})
}
