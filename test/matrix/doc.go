// Package matrix sends packets for every combination of these properties: kind of address, client, traffic policies, placement of
// the endpoints, session affinity, detection of local traffic, masquerade-all, IP family and protocol. A cell is one combination. A
// mode is a detection of local traffic, with or without masquerade-all. For each mode, the program runs once, with all Services. Two modes have echo requests
// and packets to unused ports instead.
//
// The result of a cell is the endpoints and the source addresses that they saw, a rejection, or no answer. The tests compare it with
// test/oracle. With the build tag twin, they also compare it with the result of the original kube-proxy, which runs in a second lab
// with the same addresses and uses the same API server.
//
// docs/semantics.md is generated from the oracle.
//
// In: labs, the program, kube-proxy and an API server for the twin.
// Out: a line for each failing cell, at most fifty; docs/semantics.md.
// Never: uses a rule from pkg/plan or pkg/model.
package matrix
