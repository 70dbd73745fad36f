// Package metrics has the program's metrics. Metrics with the same meaning as in kube-proxy have kube-proxy's names, so
// that existing dashboards and alerts work. Other names begin with kubenftproxy_.
//
// Four properties differ from kube-proxy's metrics of the same names (pkg/proxy/metrics/metrics.go):
//
//   - The histograms of sync and conntrack durations have kube-proxy's bucket bounds, 1 ms to 16.384 s by doubling, and
//     more at both ends: down to 7.8 µs, because a small change is committed in less than a millisecond, and up to
//     1,048 s, because a sync of several minutes must not appear as 16 s. In a cluster with both programs,
//     histogram_quantile over all nodes is right within kube-proxy's own bounds.
//   - One sync writes both families, so it is observed once for each of them, with the same duration. Sums over
//     ip_family count it twice, as they do for kube-proxy.
//   - A change of a Service is counted once. kube-proxy counts it once for each family.
//   - Series with labels that are known in advance exist from the start with the value 0, so that the first failure is
//     visible to rate().
//
// In: numbers from the program, outcomes of syncs with the plan and the sizes of tables; the kernel's counters of
// connections to Services.
// Out: collectors in a registry of the caller.
// Never: uses a global, a clock, a goroutine, or a metric with a label that grows with the cluster beyond the limit of
// a flag.
package metrics
