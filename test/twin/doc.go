// Package twin runs two proxy programs side by side: one original API server, which holds exactly a test's objects, and in the
// node of each of several labs a program, kube-nftproxy or the original kube-proxy, that follows it.
//
// In: objects, labs, the programs' paths.
// Out: the moment at which every program has programmed all of the objects, in both families.
// Never: uses testing.T, sends packets.
package twin
