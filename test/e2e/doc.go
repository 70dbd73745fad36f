// Package e2e tests the program as an operator runs it: the built binary with a kubeconfig of user system:kube-proxy, on the
// original etcd and kube-apiserver. Packets, metrics and the log decide. The tests have the build tag e2e and need root: "make
// test-e2e".
//
// In: a cluster of test/cluster on the node of a test/lab; objects of the missing controllers.
// Out: test results, and the figures of a big cluster in the log of TestBigCluster.
// Never: inspects the program from inside, or adds a rule outside the lab's namespaces.
package e2e
