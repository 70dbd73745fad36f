// Package twin brings two proxy programs side by side: one real API server, which holds objects just as a test wants them,
// and in the node of each of several labs a program, ours or the real kube-proxy, that follows it.
//
// In: objects, labs, the programs' paths.
// Out: the moment at which every program has programmed all of the objects, in both families.
// Never: testing.T, packets.
package twin
