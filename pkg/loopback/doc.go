// Package loopback serves TCP node ports on 127.0.0.1 and ::1 (KEP-6032). The kernel routes no packet from a loopback address to another
// host, unless the sysctl route_localnet opens the loopback addresses of the node to its network. So the program itself accepts these
// connections, opens one to an endpoint, and the kernel moves the bytes between the two (splice). services.go decides which Service has a node port,
// choice.go picks endpoints, port.go has the connections of one node port, server.go opens and closes the ports. The kernel refuses and counts
// packets to UDP and SCTP node ports (refuse.go).
//
// In: Services, as the loop plans them.
// Out: listeners, connections to endpoints, problems to report, a table of refused node ports.
// Never: a sysctl, the tables of Services, an address other than 127.0.0.1 and ::1, the goroutine that syncs.
package loopback
