// Command demo shows a reader in half a minute what kube-nftproxy does: it starts the real program in the namespaces of
// a lab, asks its Services as pods and outside clients do, changes them, and tells what came back. Every line with a
// check mark was measured; where something isn't as it should be, the demo says what it expected and what it saw.
//
// In: bin/kube-nftproxy, the manifests embedded here, and with -api also bin/kubernetes.
// Out: a story on the standard output; exit status 0, 1 if something was not as expected, 130 if interrupted.
// Never: anything left behind, whether it ends well, fails or is interrupted.
package main
