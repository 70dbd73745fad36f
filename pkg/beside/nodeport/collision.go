package nodeport

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Cause is the reason why a node port collides.
type Cause string

// The causes. Listener: a socket at the node port accepts new TCP connections, or UDP packets of any sender.
// EphemeralRange: the kernel may assign the node port to any process that connects or sends without choosing a port.
const (
	Listener       Cause = "listener"
	EphemeralRange Cause = "ephemeral_range"
)

// Socket is a listening TCP socket, or a UDP socket that is bound but not connected.
type Socket struct {
	Protocol inet.Protocol
	// Local is the bound address. An IPv4-mapped address is stored as IPv4.
	Local netip.AddrPort
	// V6Only is true if a socket on [::] does not accept IPv4.
	V6Only bool
	// Device is the index of the interface to which it is bound, or 0.
	Device uint32
	Inode  uint32
	// Cookie is unique among all sockets, including closed ones.
	Cookie uint64
}

// loopbackDevice is the index of the interface lo in every network namespace.
const loopbackDevice = 1

// takes reports whether the socket would receive packets of a family to one of the addresses, if no rule translated
// them. The addresses must be sorted.
func (s *Socket) takes(f inet.Family, addrs []netip.Addr) bool {
	at := s.Local.Addr()
	switch {
	case len(addrs) == 0:
		return false
	case at.IsUnspecified():
		both := at.Is6() && !s.V6Only
		return (both || inet.FamilyOf(at) == f) && s.Device != loopbackDevice
	}
	_, found := slices.BinarySearchFunc(addrs, at, netip.Addr.Compare)
	return found
}

// port is a node port, without its family.
type port struct {
	number   uint16
	protocol inet.Protocol
}

// String returns, for example, 30080/TCP.
func (p port) String() string {
	return fmt.Sprintf("%d/%s", p.number, strings.ToUpper(p.protocol.String()))
}

func (p port) compare(q port) int {
	return cmp.Or(cmp.Compare(p.number, q.number), cmp.Compare(p.protocol, q.protocol))
}

// served holds the node ports with their Services, and the addresses that serve them.
type served struct {
	services map[model.Key][]types.NamespacedName
	addrs    [2][]netip.Addr
}

// collision is a node port of a Service that collides.
type collision struct {
	service types.NamespacedName
	port    port
	// at is the address of a listening socket; invalid for other causes. own is true if this process has the socket.
	at  netip.AddrPort
	own bool
}

// listeners returns the collisions with the sockets that count: sorted, and one for each node port of a Service. judge
// reports whether a socket counts, and whether it is this process's own.
func (s *served) listeners(sockets []Socket, judge func(*Socket) (counts, own bool)) (list []collision) {
	for i := range sockets {
		socket := &sockets[i]
		var hit []types.NamespacedName
		for _, f := range inet.Families {
			key := model.Key{Port: socket.Local.Port(), Protocol: socket.Protocol, Family: f}
			if names := s.services[key]; len(names) > 0 && socket.takes(f, s.addrs[f]) {
				hit = append(hit, names...)
			}
		}
		if len(hit) == 0 {
			continue
		}
		counts, own := judge(socket)
		if !counts {
			continue
		}
		for _, name := range hit {
			list = append(list, collision{name, port{socket.Local.Port(), socket.Protocol}, socket.Local, own})
		}
	}
	return onePerPort(list)
}

// ephemeral returns the collisions with the kernel's ephemeral port range.
func (s *served) ephemeral(e Ephemeral) (list []collision) {
	for key, names := range s.services {
		if !e.Contains(key.Port) || len(s.addrs[key.Family]) == 0 {
			continue
		}
		for _, name := range names {
			list = append(list, collision{service: name, port: port{key.Port, key.Protocol}})
		}
	}
	return onePerPort(list)
}

// onePerPort sorts collisions by Service, and removes duplicates of a node port of a Service.
func onePerPort(list []collision) []collision {
	slices.SortFunc(list, func(a, b collision) int {
		return cmp.Or(model.CompareNames(a.service, b.service), a.port.compare(b.port), a.at.Compare(b.at))
	})
	return slices.CompactFunc(list, func(a, b collision) bool { return a.service == b.service && a.port == b.port })
}

// countPorts returns the number of different node ports.
func countPorts(list []collision) int {
	ports := make(map[port]struct{}, len(list))
	for _, c := range list {
		ports[c.port] = struct{}{}
	}
	return len(ports)
}

// byService splits a sorted list by Service.
func byService(list []collision) (out [][]collision) {
	for len(list) > 0 {
		n := slices.IndexFunc(list, func(c collision) bool { return c.service != list[0].service })
		if n < 0 {
			n = len(list)
		}
		out, list = append(out, list[:n]), list[n:]
	}
	return out
}

// listenerProblem returns one problem for all listeners on a Service's node ports: the API server keeps one Event of
// a kind for each object.
func listenerProblem(node string, list []collision) model.Problem {
	first := list[0]
	p := model.NodePortProblem(first.service)
	p.Event, p.Action = "NodePortCollision", "Listen"
	if first.own {
		p.Reason = fmt.Sprintf("on node %s this program itself listens on %s, for a health check node port, /healthz "+
			"or /metrics", node, listed(list, collision.where))
		p.Impact = fmt.Sprintf("packets to this port of the node's addresses reach the %s, so load balancers, the "+
			"kubelet or Prometheus get another answer or none", p.Kind)
		p.Fix = "choose another node port, or another health check node port of the other Service"
		return p
	}
	p.Reason = fmt.Sprintf("on node %s a local process listens on %s", node, listed(list, collision.where))
	p.Impact = fmt.Sprintf("packets to this port of the node's addresses reach the %s, and the process does not "+
		"receive them", p.Kind)
	p.Fix = fmt.Sprintf("move the process to another port, or choose another node port (to find the process, run "+
		"`%s` on the node)", first.command())
	return p
}

// where returns, for example, 30080/TCP (at 0.0.0.0:30080).
func (c collision) where() string { return fmt.Sprintf("%s (at %s)", c.port, c.at) }

// command returns a command that shows the listening process.
func (c collision) command() string {
	kind := "t"
	if c.port.protocol == inet.UDP {
		kind = "u"
	}
	return fmt.Sprintf("ss -ln%sp sport = :%d", kind, c.port.number)
}

// ephemeralProblem returns the problem of one Service with node ports in the ephemeral range.
func ephemeralProblem(node string, e Ephemeral, list []collision) model.Problem {
	p := model.NodePortProblem(list[0].service)
	p.Event, p.Action = "NodePortInEphemeralRange", "Allocate"
	p.Reason = fmt.Sprintf("on node %s the kernel may give %s to any process, as part of "+
		"net.ipv4.ip_local_port_range (%s)", node, listed(list, collision.name), e.Range)
	p.Impact, p.Fix = impact, remedy
	return p
}

// impact and remedy are the same for Services and nodes.
const (
	impact = "a process that gets such a port and listens there receives no packets"
	remedy = "add the cluster's node ports to net.ipv4.ip_local_reserved_ports, or move the range"
)

// nodeProblem returns the problem of a node whose ephemeral range contains node ports of any Service.
func nodeProblem(node string, e Ephemeral, list []collision) model.Problem {
	return model.Problem{
		Kind: "Node", Name: types.NamespacedName{Name: node}, Field: "net.ipv4.ip_local_port_range",
		Event: "NodePortInEphemeralRange", Action: "Allocate",
		Reason: fmt.Sprintf("%s contains node ports of Services, which the kernel may give to any process: %s", e.Range,
			listed(list, collision.owned)),
		Impact: impact, Fix: remedy,
	}
}

func (c collision) name() string { return c.port.String() }

// owned returns, for example, 30080/TCP of default/web.
func (c collision) owned() string { return fmt.Sprintf("%s of %s", c.port, c.service) }

// mostListed is the number of collisions that one message lists: the message of an Event may have 1,024 characters.
const mostListed = 4

// listed returns the texts of the first collisions, and the number of the others.
func listed(list []collision, text func(collision) string) string {
	var out []string
	for _, c := range list[:min(len(list), mostListed)] {
		out = append(out, text(c))
	}
	if more := len(list) - mostListed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}
