// Package metrics counts what the proxy does, under kube-proxy's names wherever the meaning is the same, so that
// existing dashboards and alerts go on working; what kube-proxy does not have is called kubenftproxy_*.
//
// Four things differ from kube-proxy's metrics of the same names (pkg/proxy/metrics/metrics.go). The histograms of sync
// and conntrack durations keep kube-proxy's bucket bounds, 1 ms to 16.384 s by doubling, and continue them downwards
// to 7.8 µs, because a small change is committed in less than a millisecond, and upwards to 1,048 s, because a sync that
// takes minutes must not read as 16 s; while a cluster has both programs, histogram_quantile over all nodes stays right
// within kube-proxy's own bounds. One sync writes both families, so it is observed once for each of them, with the
// same duration; sums over ip_family therefore count it twice, as they do for kube-proxy. A change of a Service is
// counted once, where kube-proxy counts it once per family. And series whose labels are known beforehand exist from the
// start with the value 0, so that the first failure is visible to rate().
//
// In: numbers, in terms of the proxy; what the kernel has counted of connections to Services.
// Out: collectors in a registry that the caller owns.
// Never: a global, a clock, a goroutine, or a metric with a label that grows with the cluster beyond what a flag says.
package metrics
