// Package health answers whether the proxy does its work: /healthz, which load balancers ask, and /livez, which probes
// should ask, on one port, and /metrics with what belongs to it on another.
//
// In: when rules were asked for and when they were written, and this node's Node.
// Out: HTTP answers with kube-proxy's codes, headers and bodies.
// Never: a look at the rules or at the API server; whoever has news brings it.
package health
