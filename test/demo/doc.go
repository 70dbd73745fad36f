// Command demo shows a reader in some seconds what kube-nftproxy does. It starts the real program in the namespaces
// of a lab, uses its Services as pods and external clients do, breaks them, and replaces a real kube-proxy. Each
// line with a check mark was measured. If a result is wrong, the demo prints the expected and the actual result.
//
// In: bin/kube-nftproxy, bin/kubernetes/kube-proxy, nft, the manifests in this package; with -api also etcd and kube-apiserver.
// Out: a story on the standard output, with -keep also a shell on the node. The exit status is 0, 1 if a result was wrong, and 130
// if interrupted.
// Never: leaves anything behind, if it ends well, fails or is interrupted.
package main
