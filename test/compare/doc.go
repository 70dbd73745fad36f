// Command compare runs kube-proxy and kube-nftproxy one after the other on the same cluster, a real etcd and kube-apiserver,
// and writes down what each takes: to start, to follow changes of several kinds, to restart; its memory and processor time;
// and what its rules cost a packet. Everything happens in network namespaces of its own.
//
// In: a plan of sizes, and how often each thing is repeated (suite.go).
// Out: docs/benchmarks.json, and the tables in docs/benchmarks.md and README.md.
// Never: a figure that this run didn't measure.
package main
