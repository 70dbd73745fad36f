package oracle

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// maximum returns the connection limit of each endpoint of a Service, and the outcome of a connection while all
// endpoints are full; 0 without a maximum, as with an invalid value, and with session affinity (docs/algorithms.md).
func maximum(s *corev1.Service) (int, Outcome) {
	n, err := strconv.Atoi(s.Annotations["kube-nftproxy.io/max-connections"])
	if err != nil || n < 1 || n > 1000 || affinity(s) > 0 {
		return 0, ""
	}
	if s.Annotations["kube-nftproxy.io/at-max-connections"] == "queue" {
		return n, Dropped
	}
	return n, Refused
}
