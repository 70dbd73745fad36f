// Package neighbours runs kube-nftproxy on a node beside other programs that change the rules of the node: firewalls, container engines,
// network plugins.
//
// For each neighbour and both orders of installation, a test checks Services and a policy of the neighbour with packets, and counts the failed
// connections while the neighbour is installed, reloads and is removed, and while kube-nftproxy restarts. Neither program may change
// the rules of the other.
//
// In: bin/neighbours with the programs, from hack/neighbours.sh; a lab for each neighbour.
// Out: a row for each neighbour; OUTPUT=folder of the repository writes docs/compatibility.json and docs/compatibility.md.
// Never: changes the rules or the services of the machine. A neighbour runs in the network namespace of the node, with its own mounts and PIDs.
package neighbours
