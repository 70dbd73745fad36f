// Package scenario proves the proxy's behaviour with readable examples: each file in testdata holds Kubernetes objects, the plan
// for them, and the results for packets. README.md explains how to write such a file.
//
// In: testdata/*.txtar, and the privilege to create network namespaces.
// Out: for each scenario five proofs: the plan, the kernel's tables, nft's listing and loading of them, equality of the results of
// changes and of a fresh start, and the packets.
// Never: describes an implementation in a scenario.
package scenario
