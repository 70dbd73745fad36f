// Package zpages serves the pages on which Kubernetes components tell about themselves: /configz, /flagz, /statusz and
// /debug (KEP-4827, KEP-4828). Types and texts are those of kube-proxy's pages.
//
// In: configuration, flags, version.
// Out: HTTP handlers for the metrics port.
// Never: anything that changes more than the log's verbosity.
package zpages
