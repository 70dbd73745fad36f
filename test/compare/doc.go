// Command compare runs kube-proxy in nftables mode and kube-nftproxy one after the other on the same cluster, a real etcd
// and kube-apiserver, and writes down what each takes: to start, to follow one changed endpoint, to restart; and the
// memory that it has. Everything happens in a network namespace of its own.
//
// In: the size of the cluster, the number of changes.
// Out: docs/benchmarks.json, and the table in docs/benchmarks.md and README.md.
// Never: a figure that this run didn't measure.
package main
