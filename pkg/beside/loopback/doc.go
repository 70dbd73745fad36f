// Package loopback serves TCP node ports on 127.0.0.1 and ::1 (KEP-6032). The kernel routes no packet from a loopback
// address to another host. The sysctl route_localnet would permit it, but would also open the node's loopback addresses
// to its network. So the program accepts these connections itself, and opens a connection to an endpoint for each. The
// kernel moves the bytes between the two (splice). For UDP and SCTP node ports, rules refuse and count the packets.
//
// services.go finds the Service of a node port, choice.go selects endpoints, port.go has the connections of one node
// port, server.go opens and closes the ports, and refuse.go has the rules.
//
// In: the Services that the loop has planned.
// Out: listeners, connections to endpoints, problems to report, a table of refused node ports.
// Never: sets a sysctl, changes the tables of Services, listens on an address other than 127.0.0.1 and ::1, blocks the
// goroutine that syncs.
package loopback
