// Package oracle says what may come of a packet to a Service. It reads the API objects as the Kubernetes documentation and
// the enhancement proposals describe them (Services, EndpointSlices, KEP-1669 terminating endpoints, KEP-2086 internal
// traffic policy, KEP-3015 topology hints, KEP-1860 ipMode), and kube-proxy's behaviour where those are silent. It is slow
// and simple on purpose, and shares nothing with the program that it judges.
//
// In: the objects, how the program was started, a packet.
// Out: a Verdict: nothing to do with Services, refused, dropped, or the endpoints of which one answers and what it sees.
// Never: anything from pkg/.
package oracle
