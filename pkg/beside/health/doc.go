// Package health reports the health of the proxy: /healthz for load balancers, /livez and /readyz for probes on one
// port, /metrics and related paths on another port, and the health check node ports of Services.
//
// In: the times of requested and successful syncs, this node's Node, and the health checks of Services.
// Out: HTTP answers with kube-proxy's codes, headers and bodies.
// Never: reads the rules or queries the API server: callers report changes.
package health
