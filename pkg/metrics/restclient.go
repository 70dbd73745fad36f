package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // registers rest_client_* and hands them to client-go
)

// RestClient gathers rest_client_*: what client-go says of its requests. The registry that it knows holds much else, most of
// which we have already: process_* and go_*, which take most of the time of a scrape, are taken out of it.
func RestClient() prometheus.Gatherer {
	for _, c := range process() {
		legacyregistry.Registerer().Unregister(c) // by what it describes
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
