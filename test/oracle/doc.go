// Package oracle predicts the possible results for a packet to a Service. It reads the API objects as the Kubernetes
// documentation and the enhancement proposals describe them (Services, EndpointSlices, KEP-1669 terminating endpoints, KEP-2086
// internal traffic policy, KEP-3015 topology hints, KEP-1860 ipMode), and follows kube-proxy where those are silent. It is slow
// and simple on purpose, and shares no code with the program that it judges.
//
// In: the objects, the program's settings, a packet.
// Out: a Verdict: unrelated to Services, refused, dropped, or the possible endpoints and the source that they see.
// Never: imports from pkg/.
package oracle
