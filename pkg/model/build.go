package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// The default and the maximum of sessionAffinityConfig.clientIP.timeoutSeconds in the API server, in seconds.
const (
	defaultAffinity = 10800
	maxAffinity     = 86400
)

// Options are the settings that affect the result of [Build].
type Options struct {
	// IgnoreExternalIPs ignores spec.externalIPs (feature gate AllowServiceExternalIPs=false).
	IgnoreExternalIPs bool
	// Method is the algorithm of Services without an annotation for it.
	Method balance.Method
	// UnusedPorts and Ping select the addresses that refuse unused ports, and the addresses that answer echo requests.
	UnusedPorts UnusedPorts
	Ping        Ping
	// Direct permits direct server return, and DirectNodePorts that of the node ports of a family. DirectDefault makes
	// it the default of Services without an annotation for it.
	Direct, DirectDefault bool
	DirectNodePorts       [2]bool
	// Terminate is the default of Services without an annotation for it. Empty stands for TerminateOff.
	Terminate Termination
	// Limits bound the cost of one Service.
	Limits Limits
	// Starts are the starting endpoints of the Service so far, see [Service.Starts]; nil for none.
	Starts *Starts
	// Now, if not nil, is the current time. An endpoint that is ready, but was not ready when Starts were made, is
	// starting. Before the first sync, the time is zero, and all endpoints have their full weight. If Now is nil,
	// exactly the endpoints in Starts are starting.
	Now *time.Time
}

// Build returns the Service as this node should program it. It returns nil if there is nothing to program: the Service
// is nil, headless, an ExternalName, or has no cluster IP. It does not read labels. The caller filters out Services of
// another proxy and slices of headless Services, and passes exactly the slices of this Service.
//
// Ports are in the order IPv4, IPv6, and within a family in the order of spec.ports. A family without a usable cluster
// IP has no ports. Frontends are in the order cluster IP, externalIPs, load-balancer IPs, node port. Within a kind,
// they are in the order of the object.
//
// No key occurs twice in a Service. If several fields have the same address, the order of precedence is load-balancer
// IP (because source ranges may restrict it), external IP, cluster IP. A frontend that replaces the cluster IP takes
// its position.
//
// Build skips each part that is invalid or exceeds a limit, and adds a Problem. The problems of the Service precede the
// problems of its slices, which are in the order of their names. An invalid timeout of session affinity is replaced,
// not skipped. The result does not depend on the order of endpoints in a slice (except for the paths in Problems). The
// result shares only strings with API objects. Lists within the result may share memory. The limits and the size of the
// objects bound its memory.
//
// The rules are those of kube-proxy (serviceport.go, endpointslicecache.go, topology.go).
func Build(o Objects, node Node, opts Options) *Service {
	if b := construct(o, node, opts); b != nil {
		return b.out
	}
	return nil
}

// construct returns a builder that has built the Service, or nil.
func construct(o Objects, node Node, opts Options) *builder {
	svc := o.Service
	// As kube-proxy's ShouldSkipService.
	if svc == nil || svc.Spec.Type == corev1.ServiceTypeExternalName ||
		svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	b := &builder{
		svc: svc, node: node, opts: opts, limits: opts.Limits.OrDefault(), out: &Service{},
		method: opts.Method, atMaximum: Refuse, denied: sourceList{field: DeniedSourcesField}, excess: o.ExcessRedirect,
	}
	b.out.Name = types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	b.problems = problems{kind: "Service", name: b.out.Name, most: b.limits.Problems}
	if o.Pod != nil {
		b.problems.kind, b.problems.name = ObjectOf(b.out.Name)
		b.hostPorts, b.method = HostPorts(o.Pod), balance.Method{}
	}
	b.ofSlices.most = 10 * b.limits.Problems
	b.out.TerminateGone = opts.Terminate == TerminateGone
	// With session affinity or a connection limit, each pair of an endpoint and a port takes two elements. With a
	// policy Local, the pairs on this node are in two lists.
	_, limited := svc.Annotations[annotationMaximum]
	if limited || svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		b.limits.Pairs = max(1, b.limits.Pairs/2)
	}
	internal, external := svc.Spec.InternalTrafficPolicy, svc.Spec.ExternalTrafficPolicy
	b.internalLocal = internal != nil && *internal == corev1.ServiceInternalTrafficPolicyLocal
	if external == corev1.ServiceExternalTrafficPolicyLocal {
		b.externalLocal = hasExternal(svc)
	}
	if external == corev1.ServiceExternalTrafficPolicyLocal || b.internalLocal {
		b.limits.Pairs = max(1, b.limits.Pairs/2)
	}
	b.service()
	b.collect(o)
	b.selectEndpoints()
	if len(b.list)+len(b.unlimited)+len(b.ofSlices.list) > 0 {
		b.out.Problems = b.allProblems()
	}
	return b
}

// A builder is the working memory of one Build.
type builder struct {
	svc  *corev1.Service
	node Node
	opts Options
	// limits are the limits of opts, with defaults for zero fields.
	limits Limits
	out    *Service // the result
	// internalLocal and externalLocal are true if the internal, and the external policy is Local.
	internalLocal, externalLocal bool

	// The values of annotations, or the defaults: the algorithm, the time of slow start or 0, the connection limit
	// of each endpoint or 0, the treatment at the limit, the votes on refusing connections to unused ports and on
	// answering ping, the ranges of ports, the allowed sources by kind of frontends or nil, and the denied sources.
	method               balance.Method
	slow                 time.Duration
	maximum              uint16
	atMaximum            AtMaximum
	refuseUnused, answer Vote
	ranges               []portRange
	annotated            [NodePort + 1]*sourceList
	denied               sourceList
	// timeouts are the timeouts in connection tracking, at most one of each protocol.
	timeouts []Timeouts
	forwarding
	// redirect is the name of the Service whose endpoints on this node take precedence, or empty. excess is true if too
	// many older Services have a local redirect to it.
	redirect string
	excess   bool
	// weighted is true if an endpoint has a weight above 1.
	weighted bool
	// deniesBalancers is true if spec.loadBalancerSourceRanges are denied sources, closesBalancers if they are unknown.
	deniesBalancers, closesBalancers bool

	// hostPorts are those of a pod; nil for a Service.
	hostPorts []corev1.ContainerPort
	// exposed is the only type of frontends that is served, or empty. selectsNodes is true if only some nodes serve the
	// Service, and elsewhere if this node is none of them.
	exposed                 corev1.ServiceType
	selectsNodes, elsewhere bool

	// cluster holds the usable cluster IPs; a family without one is not served.
	cluster [2]netip.Addr
	// fronts holds one frontend for each address of each served family. Port and protocol are not set yet.
	fronts [2][]Frontend
	// sources are the source ranges of the frontends.
	sources sources
	// groups has the endpoints of each service port, and in the last item those of other ports. selections are the
	// endpoints of each service port, with the reasons why they are not used. unread are the slices without a usable
	// port, with the reason.
	groups     []group
	selections []selection
	unread     map[*Slice]string
	// problems are those of the Service, and ofSlices those of EndpointSlices.
	problems
	ofSlices problems
}

// service sets all fields of the Service except endpoints. Each condition is work that a plain Service does not need.
func (b *builder) service() {
	b.out.Created, b.out.UID = b.svc.CreationTimestamp.Time, string(b.svc.UID)
	b.clusterIPs()
	if b.hostPorts != nil {
		b.setHostPorts()
		return
	}
	ports, nodePorts := b.usablePorts()
	b.direct = b.opts.DirectDefault
	if len(b.svc.Annotations) > 0 {
		b.readAnnotations()
	}
	if b.direct {
		b.checkDirect()
	}
	if b.elsewhere {
		b.reserve(len(ports))
		return
	}
	b.addresses(len(ports), nodePorts)
	if b.opts.UnusedPorts.Any() || b.opts.Ping.Answers() {
		b.setVotes()
	}
	b.setPorts(ports)
	if b.svc.Spec.Type == corev1.ServiceTypeLoadBalancer && b.externalLocal {
		b.healthCheck()
	}
}

// exposes reports whether frontends of a type are served.
func (b *builder) exposes(t corev1.ServiceType) bool { return b.exposed == "" || b.exposed == t }

// reserve keeps the cluster IPs for a Service with ports, without frontends: no other Service may get them.
func (b *builder) reserve(ports int) {
	if ports > 0 {
		b.out.Reserved = b.cluster
	}
}

// invalid adds a problem about an invalid value.
func (b *builder) invalid(field, value, reason string) {
	if !b.full() {
		b.problem(field, quoted(value, reason))
	}
}

// invalidItem adds a problem about an invalid value of an item of a list.
func (b *builder) invalidItem(list string, i int, field, value, reason string) {
	if !b.full() {
		b.problem(index(list, i)+field, quoted(value, reason))
	}
}

// clusterIPs follows kube-proxy's GetClusterIPByFamily: each family gets its first usable address according to
// ipFamilies. Without ipFamilies, spec.clusterIP is the only address.
func (b *builder) clusterIPs() {
	spec := &b.svc.Spec
	if len(spec.IPFamilies) == 0 {
		if addr, reason := parseDestination(spec.ClusterIP); reason != "" {
			b.invalid("spec.clusterIP", spec.ClusterIP, reason)
		} else {
			b.cluster[inet.FamilyOf(addr)] = addr
		}
		return
	}
	if len(spec.IPFamilies) > MostFamilies {
		b.problem("spec.ipFamilies", fmt.Sprintf("has more than %d families; only the first ones are used", MostFamilies))
	}
	for i, name := range spec.IPFamilies[:min(len(spec.IPFamilies), MostFamilies)] {
		f, ok := familyNamed(name)
		switch {
		case !ok:
			b.problem(index("spec.ipFamilies", i), quoted(string(name), "not an IP family"))
		case i >= len(spec.ClusterIPs):
			b.problem("spec.clusterIPs", "has no "+f.String()+" address, although spec.ipFamilies has "+f.String())
		case !b.cluster[f].IsValid():
			addr, reason := parseDestination(spec.ClusterIPs[i])
			if reason == "" && inet.FamilyOf(addr) != f {
				reason = "is not an " + f.String() + " address, as " + index("spec.ipFamilies", i) + " says"
			}
			if reason == "" {
				b.cluster[f] = addr
			} else {
				b.invalidItem("spec.clusterIPs", i, "", spec.ClusterIPs[i], reason)
			}
		}
	}
}

// familyNamed reads the name of an IP family in a Service, or the address type of an EndpointSlice, which has the same
// names.
func familyNamed[Name ~string](name Name) (inet.Family, bool) {
	switch corev1.IPFamily(name) {
	case corev1.IPv4Protocol:
		return inet.IPv4, true
	case corev1.IPv6Protocol:
		return inet.IPv6, true
	}
	return 0, false
}

// parseDestination returns the address of a frontend or an endpoint, or the reason why the string cannot be one,
// without the string.
func parseDestination(s string) (addr netip.Addr, reason string) {
	addr, err := parseRaw(s)
	if err != nil {
		return addr, err.Error()
	}
	addr = addr.Unmap()
	switch {
	case addr.IsLoopback():
		reason = "is a loopback address"
	case addr.IsUnspecified():
		reason = "is the unspecified address"
	case addr.IsMulticast():
		reason = "is a multicast address"
	case addr == broadcast:
		reason = "is the broadcast address"
	default:
		return addr, ""
	}
	return netip.Addr{}, reason
}

// broadcast is the limited broadcast address.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// addresses sets fronts. It needs the numbers of ports and node ports to check the limit of frontends.
func (b *builder) addresses(ports, nodePorts int) {
	for _, f := range inet.Families {
		if addr := b.cluster[f]; addr.IsValid() && b.exposes(corev1.ServiceTypeClusterIP) {
			b.fronts[f] = append(b.fronts[f], Frontend{
				Key: Key{Addr: addr, Family: f}, Kind: ClusterIP, Local: b.internalLocal, OnNode: addr == b.node.IPs[f],
			})
		}
	}
	var balancers, externals []netip.Addr
	if len(b.svc.Spec.ExternalIPs) > 0 || len(b.svc.Status.LoadBalancer.Ingress) > 0 {
		balancers, externals = b.otherAddresses(ports, nodePorts)
	}
	if len(b.svc.Spec.LoadBalancerSourceRanges) > 0 || len(b.svc.Annotations) > 0 {
		b.sources = b.readSources(balancers, externals)
	}
	if len(externals)+len(balancers) > 0 {
		b.addFronts(ExternalIP, externals)
		b.addFronts(LoadBalancer, balancers)
	}
	if !b.exposes(corev1.ServiceTypeClusterIP) {
		b.reserve(ports)
	}
}

// otherAddresses returns the usable load-balancer IPs and external IPs, within the limits.
func (b *builder) otherAddresses(ports, nodePorts int) (balancers, externals []netip.Addr) {
	most := b.limits.Addresses
	ingress, external := b.svc.Status.LoadBalancer.Ingress, b.svc.Spec.ExternalIPs
	if b.opts.IgnoreExternalIPs {
		external = nil
	}
	if !b.exposes(corev1.ServiceTypeLoadBalancer) {
		ingress = nil // an external IP may have the same address
	}
	if len(ingress)+len(external) > most {
		b.reportExcess(limitAddresses, fieldsOfAddresses, 0, most, "the other addresses are not served", remedyForAddresses)
		ingress = ingress[:min(len(ingress), most)]
		external = external[:most-len(ingress)]
	}
	seen := make(map[netip.Addr]bool, len(ingress)+len(external))
	balancers, externals = b.loadBalancerIPs(ingress, seen), b.externalIPs(external, seen)
	return b.withinLimits(balancers, externals, ports, nodePorts)
}

// The fields of addresses, and the remedy if they exceed a limit.
const (
	fieldsOfAddresses  = "spec.externalIPs, status.loadBalancer.ingress"
	remedyForAddresses = "load-balancer IPs are kept before external IPs, and the first ones of each list; " +
		"divide the Service"
)

// withinLimits drops addresses above the limit of frontends: external IPs first, then load-balancer IPs.
func (b *builder) withinLimits(balancers, external []netip.Addr, ports, nodePorts int) (_, _ []netip.Addr) {
	keep, fixed := len(balancers)+len(external), 0
	for _, f := range inet.Families {
		if b.cluster[f].IsValid() {
			fixed += ports + nodePorts
		}
	}
	if most := b.limits.Frontends; keep > 0 && fixed+keep*ports > most {
		fit := max(0, most-fixed) / ports
		b.reportExcess(limitFrontends, fieldsOfAddresses, fixed+keep*ports, most,
			fmt.Sprintf("%d of its addresses are not served", keep-fit), remedyForAddresses)
		balancers = balancers[:min(len(balancers), fit)]
		external = external[:fit-len(balancers)]
	}
	return balancers, external
}

// addFronts adds a frontend for each address. A frontend at the cluster IP replaces the frontend of kind ClusterIP.
func (b *builder) addFronts(kind Kind, addrs []netip.Addr) {
	for _, addr := range addrs {
		f := inet.FamilyOf(addr)
		front := Frontend{
			Key: Key{Addr: addr, Family: f}, Kind: kind, Local: b.externalLocal, Sources: b.sources[kind][f],
			OnNode: addr == b.node.IPs[f],
		}
		if addr == b.cluster[f] {
			front.ReplacesClusterIP = true
		}
		if first := b.fronts[f]; len(first) > 0 && first[0].Addr == addr {
			first[0] = front
			continue
		}
		b.fronts[f] = append(b.fronts[f], front)
	}
}

// loadBalancerIPs returns the ingress IPs that are the destination of packets when these reach the node (ipMode VIP,
// KEP-1860). It ignores an IP of a family that is not served, without a problem: the load balancer may translate
// between families.
func (b *builder) loadBalancerIPs(list []corev1.LoadBalancerIngress, seen map[netip.Addr]bool) (addrs []netip.Addr) {
	for i := range list {
		ing := &list[i]
		if ing.IP == "" || ing.IPMode != nil && *ing.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		addr, reason := parseDestination(ing.IP)
		if reason != "" {
			b.invalidItem("status.loadBalancer.ingress", i, ".ip", ing.IP, reason)
			continue
		}
		if f := inet.FamilyOf(addr); b.cluster[f].IsValid() && !seen[addr] {
			seen[addr] = true
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// noClusterIP are the reasons why an external IP of a family is not served.
var noClusterIP = [...]string{
	inet.IPv4: "the Service has no IPv4 cluster IP",
	inet.IPv6: "the Service has no IPv6 cluster IP",
}

func (b *builder) externalIPs(list []string, seen map[netip.Addr]bool) (addrs []netip.Addr) {
	for i, s := range list {
		if strings.TrimSpace(s) == "" {
			continue
		}
		addr, reason := parseDestination(s)
		if f := inet.FamilyOf(addr); reason == "" && !b.cluster[f].IsValid() {
			reason = noClusterIP[f]
		}
		if reason != "" {
			b.invalidItem("spec.externalIPs", i, "", s, reason)
			continue
		}
		if !seen[addr] {
			seen[addr] = true
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// hasExternal follows kube-proxy's ExternalPolicyLocal: the external policy of a Service without external frontends is
// ignored. Invalid and ignored externalIPs count as external frontends, too.
func hasExternal(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP, "":
		return len(svc.Spec.ExternalIPs) > 0
	}
	return false
}

// affinity returns the timeout of ClientIP session affinity.
func (b *builder) affinity() time.Duration {
	const field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
	seconds := int32(defaultAffinity)
	if c := b.svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	switch {
	case seconds <= 0:
		b.problem(field, fmt.Sprintf("%d is not positive; using %d", seconds, defaultAffinity))
		seconds = defaultAffinity
	case seconds > maxAffinity:
		b.problem(field, fmt.Sprintf("%d is more than a day; using %d", seconds, maxAffinity))
		seconds = maxAffinity
	}
	return time.Duration(seconds) * time.Second
}

func (b *builder) healthCheck() {
	port, ok := portNumber(b.svc.Spec.HealthCheckNodePort)
	if !ok {
		b.problem("spec.healthCheckNodePort", fmt.Sprintf("%d is not a port: the load balancer cannot query the number "+
			"of local endpoints", b.svc.Spec.HealthCheckNodePort))
		return
	}
	b.out.HealthCheckNodePort = port
}

// A port is a usable item of spec.ports.
type port struct {
	name             string
	protocol         inet.Protocol
	number, nodePort uint16 // nodePort 0 means none
}

// setPorts sets the service ports with their frontends, without endpoints: in each family, each port at each address,
// and its node port.
func (b *builder) setPorts(ports []port) {
	if len(ports) == 0 {
		return
	}
	affinity, atMaximum := time.Duration(0), AtMaximum("")
	if b.svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		affinity = b.affinity()
	} else if b.maximum > 0 {
		atMaximum = b.atMaximum
	}
	var ranges []portRange
	if len(b.ranges) > 0 {
		ranges = b.portRanges()
	}
	for _, f := range inet.Families {
		if !b.cluster[f].IsValid() {
			continue
		}
		first := len(b.out.Ports)
		for _, p := range ports {
			sp := &ServicePort{
				Name:     PortName{NamespacedName: b.out.Name, Port: p.name},
				Protocol: p.protocol, Family: f,
				Switches: b.out.Switches, Affinity: affinity, Method: b.method,
				MaxConnections: b.maximum, AtMaximum: atMaximum,
				Frontends: make([]Frontend, 0, len(b.fronts[f])+1),
			}
			for _, front := range b.fronts[f] {
				front.Port, front.Protocol = p.number, p.protocol
				sp.Frontends = append(sp.Frontends, front)
			}
			if p.nodePort != 0 && b.exposes(corev1.ServiceTypeNodePort) {
				sp.Frontends = append(sp.Frontends, Frontend{
					Key:  Key{Port: p.nodePort, Protocol: p.protocol, Family: f},
					Kind: NodePort, Local: b.externalLocal, Sources: b.sources[NodePort][f],
					OnAllNodes: b.opts.DirectNodePorts[f],
				})
			}
			if b.direct {
				sp.Method = b.methodOf(sp)
			}
			b.out.Ports = append(b.out.Ports, sp)
		}
		if len(ranges) > 0 {
			b.out.Ports = append(b.out.Ports, b.rangedPorts(b.out.Ports[first], ranges)...)
		}
	}
	if b.timeouts != nil {
		for _, sp := range b.out.Ports {
			sp.Timeouts = b.timeoutsOf(sp.Protocol)
		}
	}
}

// A portKey is a key that is unique among the ports of a Service: a name, port, or node port of a protocol.
type portKey struct {
	name     string
	number   uint16
	nodePort bool
	protocol inet.Protocol
}

// usablePorts returns the valid ports of the Service in the order of the object, and the number of ports with a node
// port. If two ports of one protocol have the same name or number, it keeps the first one. If they have the same node
// port, the second one loses its node port.
func (b *builder) usablePorts() (ports []port, nodePorts int) {
	n, most := len(b.svc.Spec.Ports), b.limits.Ports
	if n > most {
		b.reportExcess(limitPorts, "spec.ports", 0, most,
			fmt.Sprintf("ports from %s on are not served", index("spec.ports", most)), "divide the Service")
	}
	used := map[portKey]bool{}
	for i := range b.svc.Spec.Ports[:min(n, most)] {
		in := &b.svc.Spec.Ports[i]
		protocol, known := protocolOf(in.Protocol)
		number, valid := portNumber(in.Port)
		byNumber, byName := portKey{number: number, protocol: protocol}, portKey{name: in.Name, protocol: protocol}
		problem := func(field, reason string) { b.problem(index("spec.ports", i)+field, reason) }
		switch {
		case !known:
			b.invalidItem("spec.ports", i, ".protocol", string(in.Protocol), "not TCP, UDP or SCTP")
			continue
		case !valid:
			problem(".port", fmt.Sprintf("%d is not a port", in.Port))
			continue
		case used[byNumber]:
			problem(".port", fmt.Sprintf("%d is used twice for %s", number, protocol))
			continue
		case used[byName]:
			problem(".name", quoted(in.Name, "is used twice for "+protocol.String()))
			continue
		}
		used[byNumber], used[byName] = true, true
		p := port{name: in.Name, protocol: protocol, number: number}
		if in.NodePort != 0 {
			nodePort, valid := portNumber(in.NodePort)
			key := portKey{nodePort: true, protocol: protocol, number: nodePort}
			switch {
			case !valid:
				problem(".nodePort", fmt.Sprintf("%d is not a port", in.NodePort))
			case used[key]:
				problem(".nodePort", fmt.Sprintf("%d is used twice for %s", in.NodePort, protocol))
			default:
				used[key], p.nodePort = true, nodePort
				nodePorts++
			}
		}
		ports = append(ports, p)
	}
	return ports, nodePorts
}

// protocolOf reads the empty string as TCP, the API's default.
func protocolOf(p corev1.Protocol) (inet.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return inet.TCP, true
	case corev1.ProtocolUDP:
		return inet.UDP, true
	case corev1.ProtocolSCTP:
		return inet.SCTP, true
	}
	return 0, false
}

func portNumber(n int32) (uint16, bool) {
	if n < 1 || n > 65535 {
		return 0, false
	}
	return uint16(n), true
}

// applySlotLimit disables slow start if the tables of the Service exceed the limit only because of slow start. If they
// also exceed the limit without it, applySlotLimit returns true: the endpoints are then chosen at random, with equal
// shares.
func (b *builder) applySlotLimit() (random bool) {
	most := b.limits.Slots
	n := b.slots()
	if n <= most {
		return false
	}
	slow, remedy := b.slow, "use smaller tables and weights, or divide the Service"
	b.slow = 0
	if without := b.slots(); slow == 0 || without > most {
		b.reportExcess(limitSlots, "EndpointSlices", without, most,
			"endpoints are chosen at random, with equal shares", remedy)
		return true
	}
	b.reportExcess(limitSlots, "EndpointSlices", n, most, "endpoints start with their full weight", remedy)
	return false
}

// slots returns the number of slots of the Service. It counts all endpoints with their full weight, in each list that
// is in use, so that the result is equal on all nodes.
func (b *builder) slots() (n int) {
	for i, sp := range b.out.Ports {
		list := b.groupOf(i).endpoints
		weighted := slices.ContainsFunc(list, func(e endpoint) bool { return e.weight != 1 })
		if sp.Method.Key == balance.Chance && !weighted && b.slow == 0 {
			continue
		}
		weights := make([]uint16, len(list))
		for i := range list {
			weights[i] = list[i].weight
		}
		slots := sp.Method.Slots(len(list), balance.Reduce(weights))
		if b.slow > 0 && sp.Method.Key == balance.Chance {
			slots *= fullShare
		}
		if slots > balance.Most {
			slots = b.limits.Slots + 1
		}
		if n += slots; b.direct || slices.ContainsFunc(sp.Frontends, func(f Frontend) bool { return f.Local }) {
			n += slots
		}
	}
	return n
}

// allProblems returns the problems of the Service, then those of its slices.
func (b *builder) allProblems() []Problem {
	list := b.all("spec")
	if n := b.ofSlices.more; n > 0 {
		list = append(list, b.problemOf("EndpointSlices", fmt.Sprintf("have %d more parts that cannot be used", n)))
	}
	return slices.Concat(list, b.ofSlices.list)
}
