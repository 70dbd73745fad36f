// Package matrix sends packets for every combination of what a Service can be and who can call it: kind of address,
// client, traffic policies, placement of the endpoints, session affinity, the way in which local traffic is recognised,
// masquerade-all, IP family and protocol. The program runs once for each mode, with all Services at once. What came of
// each cell (which endpoints were reached, which source address they saw, or a refusal, or silence) is compared with
// what test/oracle says of it; under the build tag twin, also with what the real kube-proxy does in a lab of equal addresses on
// the same API server.
//
// docs/semantics.md is written from what was observed.
//
// In: labs, our program, kube-proxy and an API server for the twin.
// Out: at most fifty lines, each of which tells all about a cell that isn't as it should be.
// Never: a rule taken from pkg/plan or pkg/model.
package matrix
