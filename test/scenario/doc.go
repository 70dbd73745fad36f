// Package scenario proves what the proxy does, by examples that can be read: each file in testdata holds Kubernetes objects,
// what should be planned for them, and what then becomes of packets. README.md tells how such a file is written.
//
// In: testdata/*.txtar, and the privilege to make network namespaces.
// Out: for each scenario five proofs: the plan, the kernel's tables, nft's listing and loading of them, that changes lead to
// where a fresh start does, and the packets.
// Never: a word about how something is done, in a scenario.
package scenario
