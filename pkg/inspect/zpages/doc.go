// Package zpages serves the standard pages of Kubernetes components: /configz, /flagz, /statusz and /debug (KEP-4827,
// KEP-4828). Types and texts are those of kube-proxy's pages.
//
// In: configuration, flags, version.
// Out: HTTP handlers for the metrics port.
// Never: changes anything except the log's verbosity.
package zpages
