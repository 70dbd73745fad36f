// Package plugin is the kubectl plugin: it runs a command of kube-nftproxy in the pods of nodes, as kubectl exec does.
//
// In: arguments, a kubeconfig; pods and Nodes of the API server; the output of the commands.
// Out: the output of one node, or of all nodes; one table of the health of all nodes; archives; an exit code.
// Never: changes an object.
package plugin
