// Package health reports whether the proxy works: /healthz for load balancers and /livez for probes on one port, /metrics and
// related paths on another.
//
// In: the times of requested and finished syncs, and this node's Node.
// Out: HTTP answers with kube-proxy's codes, headers and bodies.
// Never: reads the rules or the API server; callers report changes.
package health
