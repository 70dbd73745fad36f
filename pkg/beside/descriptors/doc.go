// Package descriptors shares the file descriptors of this process among namespaces: the sockets of health check node
// ports, and the sockets and connections of node ports on loopback. Tenants choose the numbers of these. A part of the
// descriptors is never shared, so that the program can always reach the API server and answer queries.
//
// In: the limit of open files, requests of namespaces; the errors of sockets.
// Out: a grant, or the limit that does not permit it; one problem of each Service whose sockets cannot be opened.
// Never: selects an address or a port.
package descriptors
