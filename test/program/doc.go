// Package program runs a proxy's program in a host of a lab as an operator would: ours, or kube-proxy, which serves the
// same metrics at the same place.
//
// In: a lab's host, the program's path and flags.
// Out: a running Program: its log, its HTTP ports, its metrics, the moment of its syncs.
// Never: a process that outlives the one that started it.
package program
