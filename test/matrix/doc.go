// Package matrix sends packets for every combination of a Service's properties and its clients: kind of address, client, traffic
// policies, placement of the endpoints, session affinity, the way in which local traffic is recognised, masquerade-all, IP family
// and protocol. The program runs once for each mode, with all Services at once. The results of each cell (the reached endpoints,
// the source address that they saw, or a rejection, or no answer) are compared with test/oracle. With the build tag twin, they
// are also compared with those of the original kube-proxy, in a lab with equal addresses on the same API server.
//
// docs/semantics.md is generated from the results.
//
// In: labs, the program, kube-proxy and an API server for the twin.
// Out: at most fifty lines, each with all details of a failing cell.
// Never: uses a rule from pkg/plan or pkg/model.
package matrix
