// Package faulty stands between a program and an API server, and does what networks and API servers do on bad days: connections are
// refused or reset, watches end or expire, requests are refused, events come twice, late or garbled, certificates are replaced.
//
// In: an address to listen at, and a client configuration for the API server.
// Out: a kubeconfig file, and methods that make one fault each.
// Never: testing.T, a fault that wasn't asked for.
package faulty
