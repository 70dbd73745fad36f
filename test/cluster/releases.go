package cluster

// Releases are the releases of Kubernetes whose API servers `make skew` tests, the oldest first. The last one is that of
// test/kubernetes.
var Releases = []string{"v1.33.5", "v1.34.3", "v1.35.4", "v1.36.3", "v1.37.2"}
