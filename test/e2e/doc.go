// Package e2e tests the program as an operator runs it: the real binary with a kubeconfig of user system:kube-proxy,
// against a real etcd and kube-apiserver, judged by real packets, its metrics and its log. The tests have the build tag
// e2e and need root: "make test-e2e".
//
// In: a cluster of test/cluster on the node of a test/lab; objects that the missing controllers would write.
// Out: verdicts, and the figures of a big cluster in the log of TestBigCluster.
// Never: a look into the program from inside, or a rule outside of the lab's namespaces.
package e2e
