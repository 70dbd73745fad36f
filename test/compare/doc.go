// Command compare runs kube-proxy and kube-nftproxy one after the other on the same cluster, with the original etcd and
// kube-apiserver, and measures starts, several kinds of changes, restarts, memory, processor time, and the cost of the rules for
// a packet. It uses its own network namespaces.
//
// In: a plan of sizes with numbers of repetitions (suite.go).
// Out: docs/benchmarks.json, its siblings docs/benchmarks-*.json, and the tables in docs/benchmarks.md,
// docs/benchmarks-details.md, docs/sizing.md and README.md.
// Never: reports a figure that this run did not measure.
package main
