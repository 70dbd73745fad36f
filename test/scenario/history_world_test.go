package scenario

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// world is a small cluster with few names, addresses and node ports, so that conflicts are frequent. It draws the events,
// independently of the proxy.
type world struct {
	rand     *rand.Rand
	services map[string]*member
	created  int
	node     corev1.Node
	cidrs    [][]string
	clients  clients
	pods     *pods
	// direct is true with the flag for direct server return.
	direct bool
}

// member is a Service with its slices.
type member struct {
	service corev1.Service
	slices  []discoveryv1.EndpointSlice
}

// members is the largest number of Services, serviceIPs the number of cluster IPs that they share.
const (
	members    = 10
	serviceIPs = 14
	// busy is the number of Services that change more often, and that have clients that keep sending.
	busy = 3
)

// serviceCIDR has the cluster IPs. otherCIDR is added and removed.
var serviceCIDR, otherCIDR = []string{"10.96.0.0/16", "fd00:10:96::/112"}, []string{"10.97.0.0/24", "fd00:10:97::/120"}

func newWorld(seed uint64) *world {
	w := &world{
		rand: rand.New(rand.NewPCG(seed, 2)), services: map[string]*member{}, cidrs: [][]string{serviceCIDR},
		pods: newPods(rand.New(rand.NewPCG(seed, 3))),
	}
	w.node = corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}},
	}
	w.node.Status.Addresses = w.nodeAddresses(0)
	w.clients = clients{rand: w.rand, name: "flow", most: lab.One(w.rand, 0, 4)}
	return w
}

// newHistory draws a history with a number of steps. With direct, Services may have direct server return.
func newHistory(seed uint64, steps int, direct bool) *history {
	w := newWorld(seed)
	h := &history{flags: w.flags()}
	if w.direct = direct; direct {
		h.flags = append(h.flags, "--cluster-cidr=10.244.0.0/24,fd00:10:244::/64",
			lab.One(w.rand, "--direct-server-return=true", "--direct-server-return=all"),
			lab.One(w.rand, "--direct-server-return-node-cidrs=", "--direct-server-return-node-cidrs="+nodeCIDRs,
				"--direct-server-return-node-cidrs="+nodeCIDRs))
	}
	for range steps {
		h.steps = append(h.steps, w.step())
	}
	return h
}

// nodeCIDRs have some of the node's addresses.
const nodeCIDRs = "192.0.2.0/31,2001:db8::/126"

// flags draws a command line.
func (w *world) flags() (flags []string) {
	for _, choices := range [][]string{
		{"", "", "", "--cluster-cidr=", "--pod-interface-name-prefix=veth-pod", "--cluster-cidr=10.244.0.0/24,fd00:10:244::/64"},
		{"", "", "", "--masquerade-all"},
		{"", "", "", "--nodeport-addresses=192.0.2.0/24,2001:db8::/32", "--nodeport-addresses=192.0.2.2/32", "--nodeport-addresses=0.0.0.0/0,::/0"},
		{"", "", "", "", "--ignore-external-ips"},
		{"", "", "", "--refuse-unused-ports=all", "--refuse-unused-ports=" + balancerCIDRs},
		{"", "", "", "--answer-ping=annotated", "--answer-ping=ready", "--answer-ping=always"},
	} {
		if flag := choices[w.rand.IntN(len(choices))]; flag != "" {
			flags = append(flags, flag)
		}
	}
	return flags
}

// step draws the next events: mostly one change, sometimes several or none, and sometimes a fault.
func (w *world) step() *moment {
	m := &moment{write: map[string]manifest{}, hasty: w.rand.IntN(3) == 0}
	for range 1 + w.rand.IntN(8)/5*w.rand.IntN(4) {
		w.change(m)
	}
	if w.rand.IntN(8) == 0 {
		m.faults = w.faults()
	}
	for range 16 {
		m.packets = append(m.packets, w.question())
	}
	q := w.question()
	if s := w.services[fmt.Sprintf("svc-%d", w.rand.IntN(busy))]; s != nil {
		q = w.questionTo(w.target(s))
	}
	m.packets = append(m.packets, w.clients.goOn(q)...)
	w.pods.step(m)
	return m
}

// clients are UDP clients that keep sending, at most the number in most. Some worlds have none, because checks of
// conntrack entries take time.
type clients struct {
	rand *rand.Rand
	// name begins the names of all clients.
	name        string
	flows       []question
	most, begun int
}

// goOn draws packets of some of the clients. Sometimes a client with the packet q is added, or a client is removed.
func (c *clients) goOn(q question) (list []question) {
	if len(c.flows) < c.most && q.protocol == corev1.ProtocolUDP {
		c.begun++
		q.flow = fmt.Sprintf("%s-%d", c.name, c.begun)
		c.flows = append(c.flows, q)
	} else if len(c.flows) > 0 && c.rand.IntN(20) == 0 {
		c.flows = c.flows[1:]
	}
	for _, q := range c.flows {
		if c.rand.IntN(2) == 0 {
			list = append(list, q)
		}
	}
	return list
}

// change makes one random change.
func (w *world) change(m *moment) {
	if w.rand.IntN(20) == 0 {
		w.changeCluster()
		m.put("cluster.yaml", w.cluster())
		return
	}
	name := fmt.Sprintf("svc-%d", w.rand.IntN(lab.One(w.rand, busy, members)))
	file, s := name+".yaml", w.services[name]
	switch {
	case s == nil:
		s = w.create(name)
		w.services[name] = s
	case w.rand.IntN(20) == 0:
		delete(w.services, name)
		m.delete(file)
		return
	default:
		changes[w.rand.IntN(len(changes))](w, s)
	}
	if w.direct && w.rand.IntN(2) == 0 {
		w.forwarding(s)
	}
	m.put(file, s.manifest())
}

// changeCluster changes this Node or the ServiceCIDRs.
func (w *world) changeCluster() {
	switch w.rand.IntN(3) {
	case 0:
		w.node.Labels = map[string]string{}
		if zone := w.rand.IntN(3); zone > 0 {
			w.node.Labels[corev1.LabelTopologyZone] = []string{"", "zone-a", "zone-b"}[zone]
		}
	case 1:
		w.node.Status.Addresses = w.nodeAddresses(w.rand.IntN(4))
	default:
		w.cidrs = [][][]string{{serviceCIDR}, {serviceCIDR, otherCIDR}, {otherCIDR}}[w.rand.IntN(3)]
	}
}

// nodeAddresses returns the Node's addresses in some order.
func (w *world) nodeAddresses(order int) (list []corev1.NodeAddress) {
	texts := []string{"192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"}
	if order&1 != 0 {
		slices.Reverse(texts)
	}
	for i, text := range texts {
		kind := corev1.NodeInternalIP
		if order&2 != 0 && i%2 == 0 {
			kind = corev1.NodeExternalIP
		}
		list = append(list, corev1.NodeAddress{Type: kind, Address: text})
	}
	return append(list, corev1.NodeAddress{Type: corev1.NodeHostName, Address: nodeName})
}

func (w *world) cluster() manifest {
	out := manifest{tree(&w.node)}
	for i, cidrs := range w.cidrs {
		out = append(out, tree(&networkingv1.ServiceCIDR{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cidr-%d", i)},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		}))
	}
	return out
}

func (m *member) manifest() manifest {
	out := manifest{tree(&m.service)}
	for i := range m.slices {
		out = append(out, tree(&m.slices[i]))
	}
	return out
}

// tree returns an object as nested maps and lists, without empty values.
func tree(object any) map[string]any {
	data, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return prune(out).(map[string]any)
}

func prune(value any) any {
	if m, ok := value.(map[string]any); ok {
		for name, v := range m {
			if v = prune(v); v == nil {
				delete(m, name)
			}
		}
		if len(m) == 0 {
			return nil
		}
	}
	return value
}

func (w *world) create(name string) *member {
	w.created += w.rand.IntN(2) // sometimes two Services have the same age
	m := &member{service: corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(1_700_000_000+int64(w.created), 0),
			Annotations: map[string]string{},
		},
	}}
	for _, f := range []func(*world, *member){
		(*world).addresses, (*world).serviceType, (*world).ports, (*world).endpoints, (*world).externalIPs, (*world).balancers,
	} {
		f(w, m)
	}
	if w.rand.IntN(2) == 0 {
		w.annotations(m)
	}
	return m
}

// changes are the possible changes of a Service.
var changes = []func(*world, *member){
	(*world).endpoints, (*world).endpoints, (*world).oneEndpoint, (*world).oneEndpoint, (*world).oneEndpoint, (*world).conditions,
	(*world).conditions, (*world).hints, (*world).ports, (*world).addresses, (*world).serviceType, (*world).externalIPs, (*world).balancers,
	(*world).sourceRanges, (*world).sourceRanges, (*world).policies, (*world).policies, (*world).affinity, (*world).affinity,
	(*world).slicePorts, (*world).labels, (*world).moveSlice, (*world).weights, (*world).weights,
	(*world).annotations, (*world).annotations, (*world).annotations, (*world).annotations, (*world).annotations,
	(*world).annotations, (*world).annotatedSources, (*world).class, (*world).scale, (*world).scale,
	(*world).redirect, (*world).redirect,
}

// clusterIP is the number-th cluster IP of a family.
func clusterIP(number int, six bool) string {
	if six {
		return fmt.Sprintf("fd00:10:96::%x", number+1)
	}
	return fmt.Sprintf("10.96.0.%d", number+1)
}

// addresses draws cluster IPs; sometimes another Service has them.
func (w *world) addresses(m *member) {
	i := w.rand.IntN(serviceIPs)
	four, six := clusterIP(i, false), clusterIP(i, true)
	m.service.Spec.ClusterIP, m.service.Spec.ClusterIPs = "", lab.One(w.rand, []string{four}, []string{six},
		[]string{four, six}, []string{six, four})
}

// labels assigns the Service to another proxy, makes it a kind that is not proxied, or reverts that.
func (w *world) labels(m *member) {
	m.service.Labels = nil
	if m.service.Spec.Type == corev1.ServiceTypeExternalName || m.service.Spec.ClusterIP == corev1.ClusterIPNone {
		m.service.Spec.Type, m.service.Spec.ClusterIP = corev1.ServiceTypeClusterIP, ""
		w.ports(m)
	}
	switch w.rand.IntN(6) {
	case 0:
		m.service.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": lab.One(w.rand, "", "mesh")}
	case 1:
		m.service.Spec.Type = corev1.ServiceTypeExternalName
	case 2:
		m.service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for i := range m.slices {
		delete(m.slices[i].Labels, corev1.IsHeadlessService)
		if m.slices[i].Labels != nil && w.rand.IntN(6) == 0 {
			m.slices[i].Labels[corev1.IsHeadlessService] = ""
		}
	}
}

var portPool = []corev1.ServicePort{
	{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
	{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP},
	{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
	{Name: "dns", Port: 53, Protocol: corev1.ProtocolTCP},
	{Name: "quic", Port: 443, Protocol: corev1.ProtocolUDP},
	{Name: "sig", Port: 36412, Protocol: corev1.ProtocolSCTP},
}

func (w *world) ports(m *member) {
	m.service.Spec.Ports = lab.Some(w.rand, portPool, 3)
	for i := range m.service.Spec.Ports {
		if w.rand.IntN(8) == 0 {
			m.service.Spec.Ports[i].Port += 1000
		}
	}
	w.nodePorts(m)
}

func (w *world) serviceType(m *member) {
	m.service.Spec.Type = lab.One(w.rand, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer)
	m.service.Spec.HealthCheckNodePort = 0
	w.nodePorts(m)
}

// nodePorts draws node ports; sometimes another Service has them, too.
func (w *world) nodePorts(m *member) {
	for i := range m.service.Spec.Ports {
		m.service.Spec.Ports[i].NodePort = 0
		if t := m.service.Spec.Type; t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer && w.rand.IntN(4) > 0 {
			m.service.Spec.Ports[i].NodePort = int32(30000 + w.rand.IntN(serviceIPs))
		}
	}
}

// externalPool are addresses of external IPs, balancerPool those of load balancers. Some are in both, some belong to the node,
// and some are invalid. The network of 2001:db8:244::1 differs from that of the pods only in the first four bytes.
var (
	externalPool = []string{
		"198.51.100.1", "198.51.100.2", "2001:db8:1::1", "2001:db8:244::1", "192.0.2.2", "2001:db8::2", "10.96.0.3",
		"fd00:10:96::3", "127.0.0.1", "bad",
	}
	balancerPool = []string{"203.0.113.1", "203.0.113.2", "198.51.100.1", "2001:db8:2::1", "2001:db8:2::2", "2001:db8:1::1", "192.0.2.2", "2001:db8::2"}
	rangePool    = []string{
		"192.0.2.0/24", "192.0.2.100/32", "192.0.2.64/26", "10.244.0.0/24", "10.0.0.0/8", " 192.0.2.1/32 ", "0.0.0.0/0", "203.0.113.128/25",
		"2001:db8::/32", "2001:db8::100/128", "fd00:10:244::/64", "2001:db8::1/128", "::/0", "bad",
	}
)

// balancerCIDRs have some of the load balancers' addresses, and the node's.
const balancerCIDRs = "203.0.113.0/24,2001:db8:2::/64,192.0.2.0/24"

func (w *world) externalIPs(m *member) {
	m.service.Spec.ExternalIPs = lab.Some(w.rand, externalPool, 2)
}

func (w *world) balancers(m *member) {
	m.service.Status.LoadBalancer.Ingress = nil
	for _, ip := range lab.Some(w.rand, balancerPool, 3) {
		ingress := corev1.LoadBalancerIngress{IP: ip}
		if w.rand.IntN(3) == 0 {
			mode := lab.One(w.rand, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
			ingress.IPMode = &mode
		}
		m.service.Status.LoadBalancer.Ingress = append(m.service.Status.LoadBalancer.Ingress, ingress)
	}
}

func (w *world) sourceRanges(m *member) {
	m.service.Spec.LoadBalancerSourceRanges = lab.Some(w.rand, rangePool, 3)
	if len(m.service.Status.LoadBalancer.Ingress) == 0 {
		w.balancers(m)
	}
}

// annotatedSources draws the annotations with source ranges.
func (w *world) annotatedSources(m *member) {
	for _, key := range []string{"kube-nftproxy.io/node-port-source-ranges", "kube-nftproxy.io/external-ip-source-ranges", "kube-nftproxy.io/denied-source-ranges"} {
		delete(m.service.Annotations, key)
		if w.rand.IntN(2) == 0 {
			m.service.Annotations[key] = strings.Join(lab.Some(w.rand, rangePool, 3), ",")
		}
	}
	if len(m.service.Spec.ExternalIPs) == 0 {
		w.externalIPs(m)
	}
}

func (w *world) policies(m *member) {
	internal := lab.One(w.rand, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	m.service.Spec.InternalTrafficPolicy = &internal
	m.service.Spec.ExternalTrafficPolicy = lab.One(w.rand, corev1.ServiceExternalTrafficPolicyCluster,
		corev1.ServiceExternalTrafficPolicyLocal)
}

func (w *world) affinity(m *member) {
	spec := &m.service.Spec
	spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if timeout := lab.One[int32](w.rand, 0, 2, 60, 10800); timeout > 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
}

// endpoints draws new endpoints, in up to two slices for each family.
func (w *world) endpoints(m *member) {
	m.slices = nil
	for n := range 2 * 2 {
		if w.rand.IntN(4) == 0 {
			continue
		}
		s := discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: fmt.Sprintf("%s-%d", m.service.Name, n),
				Labels: map[string]string{discoveryv1.LabelServiceName: m.service.Name},
			},
			AddressType: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[n%2],
			Endpoints:   []discoveryv1.Endpoint{},
		}
		for _, host := range lab.Some(w.rand, endpointPool, 4) {
			s.Endpoints = append(s.Endpoints, w.endpoint(n%2 == 1, host))
		}
		m.slices = append(m.slices, s)
	}
	w.slicePorts(m)
	if w.rand.IntN(4) == 0 {
		w.hints(m)
	}
}

// weights draws the weights of slices and of one endpoint of each. Weight 0 is a quarantine.
func (w *world) weights(m *member) {
	for i := range m.slices {
		s := &m.slices[i]
		s.Annotations = map[string]string{}
		for _, a := range model.Annotations {
			if a.OfSlices() && !a.List && w.rand.IntN(3) == 0 {
				s.Annotations[a.Name] = w.value(&a)
			}
		}
		if len(s.Endpoints) > 0 && w.rand.IntN(2) == 0 {
			s.Annotations["kube-nftproxy.io/weights"] = lab.One(w.rand, s.Endpoints...).Addresses[0] +
				lab.One(w.rand, "=0", "=3", "=1")
		}
	}
}

// annotations draws the values of some annotations of a Service, or removes them. A step of a history that is not hasty
// takes three minutes, the time of a short slow start. Some clients reach a connection limit of 1 or 2.
func (w *world) annotations(m *member) {
	for _, a := range model.Annotations {
		if a.OfSlices() || w.rand.IntN(4) > 0 {
			continue
		}
		if delete(m.service.Annotations, a.Name); w.rand.IntN(2) == 0 {
			m.service.Annotations[a.Name] = w.value(&a)
		}
	}
}

// value draws a value of an annotation, which is sometimes invalid.
func (w *world) value(a *model.Annotation) string {
	if len(a.Wrong) > 0 && w.rand.IntN(8) == 0 {
		return lab.One(w.rand, a.Wrong...)
	}
	return lab.One(w.rand, a.Samples...)
}

// scale makes a Service scale to zero without endpoints, or gives it endpoints.
func (w *world) scale(m *member) {
	m.service.Annotations["kube-nftproxy.io/scale-to-zero"] = "true"
	if len(m.slices) == 0 {
		w.endpoints(m)
	} else {
		m.slices = nil
	}
}

// redirect makes the endpoints of a Service on this node serve the cluster IPs of another one, which mostly has no
// other addresses.
func (w *world) redirect(m *member) {
	m.service.Annotations[model.RedirectAnnotation] = fmt.Sprintf("svc-%d", w.rand.IntN(busy+1))
	if w.rand.IntN(8) > 0 {
		m.service.Spec.Type, m.service.Spec.ExternalIPs = corev1.ServiceTypeClusterIP, nil
		m.service.Status.LoadBalancer.Ingress = nil
		w.nodePorts(m)
	}
}

// forwarding asks for direct server return, or leaves it to the default of the node, and removes most properties that
// prevent it. With source-hash, the oracle knows the endpoint of each client.
func (w *world) forwarding(m *member) {
	if m.service.Annotations["kube-nftproxy.io/forwarding-mode"] = "dsr"; w.rand.IntN(3) == 0 {
		delete(m.service.Annotations, "kube-nftproxy.io/forwarding-mode") // the default of the node
	}
	m.service.Annotations["kube-nftproxy.io/lb-algorithm"] = lab.One(w.rand, "source-hash", "source-hash", "maglev",
		"random")
	for _, name := range []string{"max-connections", "slow-start", "port-ranges", "spread-connections"} {
		delete(m.service.Annotations, "kube-nftproxy.io/"+name)
	}
	delete(m.service.Annotations, "networking.cozystack.io/wholeIP")
	m.service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	m.service.Spec.SessionAffinity, m.service.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	for len(m.service.Status.LoadBalancer.Ingress) == 0 {
		w.balancers(m)
	}
	for i := range m.slices {
		s := &m.slices[i]
		if len(s.Endpoints) < 3 && w.rand.IntN(2) == 0 {
			s.Endpoints = append(s.Endpoints, w.endpoint(s.AddressType == discoveryv1.AddressTypeIPv6, otherNode))
		}
		for j := range s.Endpoints {
			s.Endpoints[j].Hints = nil
		}
	}
}

// class draws the class of the load balancer.
func (w *world) class(m *member) {
	m.service.Spec.LoadBalancerClass = lab.One(w.rand, nil, nil, new("example.org/other"))
}

// slicePorts draws the numbers of named ports, independently for each slice.
func (w *world) slicePorts(m *member) {
	for i := range m.slices {
		m.slices[i].Ports = nil
		for _, p := range portPool {
			if w.rand.IntN(10) == 0 {
				continue
			}
			number := lab.One[int32](w.rand, firstPort, secondPort)
			m.slices[i].Ports = append(m.slices[i].Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &number, Protocol: &p.Protocol})
		}
	}
}

// place is a host that can be an endpoint.
type place struct{ four, six, node string }

// otherNode is a pod on another node.
var otherNode = place{"10.244.1.10", "fd00:10:244:1::10", "node-2"}

var endpointPool = []place{
	{"10.244.0.10", "fd00:10:244::10", nodeName}, {"10.244.0.11", "fd00:10:244::11", nodeName},
	otherNode, {"10.244.1.11", "fd00:10:244:1::11", ""}, {"192.0.2.1", "2001:db8::1", nodeName},
}

func (w *world) endpoint(six bool, host place) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{host.four}}
	if six {
		e.Addresses[0] = host.six
	}
	if host.node != "" {
		e.NodeName = &host.node
	}
	w.condition(&e)
	return e
}

// condition draws the conditions of an endpoint; missing ones have defaults.
func (w *world) condition(e *discoveryv1.Endpoint) {
	yes, no := true, false
	e.Conditions = lab.One(w.rand,
		discoveryv1.EndpointConditions{},
		discoveryv1.EndpointConditions{Ready: &yes},
		discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		discoveryv1.EndpointConditions{Ready: &no},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &no},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes},
		discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes},
		discoveryv1.EndpointConditions{Ready: &yes, Terminating: &yes}, // publishNotReadyAddresses
	)
}

func (w *world) conditions(m *member) {
	for i := range m.slices {
		for j := range m.slices[i].Endpoints {
			if w.rand.IntN(2) == 0 {
				w.condition(&m.slices[i].Endpoints[j])
			}
		}
	}
}

// hints gives hints to all endpoints, to some, or to none.
func (w *world) hints(m *member) {
	zones, nodes, missing := w.rand.IntN(2) == 0, w.rand.IntN(2) == 0, w.rand.IntN(3) == 0
	for i := range m.slices {
		for j := range m.slices[i].Endpoints {
			e := &m.slices[i].Endpoints[j]
			e.Hints = nil
			if !zones && !nodes || missing && w.rand.IntN(4) == 0 {
				continue
			}
			e.Hints = &discoveryv1.EndpointHints{}
			if zones {
				e.Hints.ForZones = []discoveryv1.ForZone{{Name: lab.One(w.rand, "zone-a", "zone-b")}}
			}
			if nodes {
				e.Hints.ForNodes = []discoveryv1.ForNode{{Name: lab.One(w.rand, nodeName, "node-2", "node-2")}}
			}
		}
	}
}

// oneEndpoint adds, removes or replaces one endpoint of one slice.
func (w *world) oneEndpoint(m *member) {
	if len(m.slices) == 0 {
		return
	}
	s := &m.slices[w.rand.IntN(len(m.slices))]
	if n := len(s.Endpoints); n > 0 && w.rand.IntN(3) > 0 {
		at := w.rand.IntN(n)
		s.Endpoints = slices.Delete(slices.Clone(s.Endpoints), at, at+1)
	}
	if w.rand.IntN(3) > 0 {
		s.Endpoints = append(s.Endpoints, w.endpoint(s.AddressType == discoveryv1.AddressTypeIPv6,
			lab.One(w.rand, endpointPool...)))
	}
}

// moveSlice assigns a slice to another Service, or to none, and all others to their own.
func (w *world) moveSlice(m *member) {
	for i := range m.slices {
		m.slices[i].Labels = map[string]string{discoveryv1.LabelServiceName: m.service.Name}
	}
	if len(m.slices) > 0 {
		s := &m.slices[w.rand.IntN(len(m.slices))]
		s.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("svc-%d", w.rand.IntN(members))}
		if w.rand.IntN(4) == 0 {
			s.Labels = nil
		}
	}
}

// faults draws foreign changes, restarts of the program, and failures of its batches.
func (w *world) faults() (list []string) {
	family := lab.One(w.rand, "ip", "ip6")
	table := family + " " + plan.TableName
	for range 1 + w.rand.IntN(5)/4 {
		list = append(list, lab.One(w.rand,
			restart, restart, restart, refuse, loseReply,
			"nft flush ruleset",
			"nft delete table "+table,
			"nft flush map "+table+" "+lab.One(w.rand, "services", "nodeports", "endpoints", "local-endpoints",
				"dispatch", "backends", "slots", "affinity"),
			"nft flush set "+table+" "+lab.One(w.rand, "hairpin", "cluster-ips", "allowed-sources", "lease",
				plan.StateSet),
			"nft flush chain "+table+" "+lab.One(w.rand, "services", "postrouting", "external-local", "firewall",
				"translated"),
			"nft add rule "+table+" services counter accept",
			"nft insert rule "+table+" postrouting accept",
			"nft add chain "+table+" foreign",
			"nft add table "+family+" foreign",
			"nft "+w.elementFault(family),
			"nft "+w.elementFault(family),
		))
	}
	return list
}

// elementFault draws a change of an element that may exist. A command that fails changes nothing.
func (w *world) elementFault(family string) string {
	six := family == "ip6"
	vip := fmt.Sprintf("%s . %s", clusterIP(w.rand.IntN(serviceIPs), six),
		lab.One(w.rand, "tcp . 80", "tcp . 443", "udp . 53", "tcp . 53"))
	backend := lab.One(w.rand, endpointPool...)
	addr := backend.four
	if six {
		addr = backend.six
	}
	add, remove := "add element "+family+" "+plan.TableName, "delete element "+family+" "+plan.TableName
	first := fmt.Sprintf("%s . 8000:%x . 0", lab.One(w.rand, "tcp", "udp"), 0x800*(1+w.rand.IntN(members)))
	return lab.One(w.rand,
		fmt.Sprintf("%s services { %s }", remove, vip),
		fmt.Sprintf("%s endpoints { %s }", remove, first),
		fmt.Sprintf("%s endpoints { %s } ; %s endpoints { %s : %s . 9 }", remove, first, add, first, addr),
		fmt.Sprintf("%s services { %s } ; %s services { %s : 8000:802 }", remove, vip, add, vip),
		fmt.Sprintf("%s services { %s : 8000:801 }", add, vip),
		fmt.Sprintf("%s cluster-ips { %s }", remove, clusterIP(w.rand.IntN(serviceIPs), six)),
		fmt.Sprintf("%s node-addresses { %s }", add, addr),
	)
}

// question draws a packet: mostly one to a Service.
func (w *world) question() question {
	if names := slices.Sorted(maps.Keys(w.services)); len(names) > 0 && w.rand.IntN(6) > 0 {
		return w.questionTo(w.target(w.services[lab.One(w.rand, names...)]))
	}
	return w.questionTo(w.stray())
}

func (w *world) questionTo(addr netip.Addr, port corev1.ServicePort) question {
	return questionTo(w.rand, addr, port)
}

func questionTo(r *rand.Rand, addr netip.Addr, port corev1.ServicePort) question {
	q := question{from: lab.One(r, "client", "client-1", "node", "node", "pod-0", "pod-1", "remote-0", "remote-1")}
	q.to, q.protocol = netip.AddrPortFrom(addr, uint16(port.Port)), port.Protocol
	if !slices.Contains(ownAddresses, addr) && r.IntN(20) == 0 {
		q.to, q.protocol = netip.AddrPortFrom(addr, 0), ""
	}
	if q.from == "node" {
		q.source = lab.One(r, ownAddresses...)
		for q.source.Is6() != addr.Is6() {
			q.source = lab.One(r, ownAddresses...)
		}
	}
	return q
}

// stray draws an unrelated address and port.
func (w *world) stray() (netip.Addr, corev1.ServicePort) {
	port := lab.One(w.rand, portPool...)
	if w.rand.IntN(3) == 0 {
		port.Port = int32(30000 + w.rand.IntN(serviceIPs))
		return lab.One(w.rand, ownAddresses...), port
	}
	texts := slices.Concat(externalPool[:len(externalPool)-2], balancerPool, []string{"10.96.0.200", "fd00:10:96::200", "10.97.0.9", "fd00:10:97::9"})
	for range 4 {
		texts = append(texts, clusterIP(w.rand.IntN(serviceIPs), w.rand.IntN(2) == 0))
	}
	return netip.MustParseAddr(lab.One(w.rand, texts...)), port
}

// target draws one of a Service's addresses and ports, or a node port.
func (w *world) target(m *member) (netip.Addr, corev1.ServicePort) {
	var addrs []netip.Addr
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil && !a.IsLoopback() {
			addrs = append(addrs, a)
		}
	}
	for _, text := range slices.Concat(m.service.Spec.ClusterIPs, m.service.Spec.ExternalIPs) {
		add(text)
	}
	if w.direct && len(m.service.Status.LoadBalancer.Ingress) > 0 && w.rand.IntN(2) == 0 {
		addrs = nil
	}
	for _, ingress := range m.service.Status.LoadBalancer.Ingress {
		add(ingress.IP)
	}
	addr, port := w.stray()
	if len(m.service.Spec.Ports) == 0 {
		return lab.One(w.rand, addrs...), port
	}
	port = lab.One(w.rand, m.service.Spec.Ports...)
	if hasRanges(m) && w.rand.IntN(2) == 0 && len(addrs) > 0 {
		return lab.One(w.rand, addrs...), inRange(w)
	}
	if port.NodePort != 0 && w.rand.IntN(3) == 0 {
		port.Port = port.NodePort
		return lab.One(w.rand, slices.Concat(ownAddresses, ownAddresses[:2], ownAddresses[:2])...), port
	}
	if len(addrs) > 0 {
		addr = lab.One(w.rand, addrs...)
	}
	return addr, port
}

func hasRanges(m *member) bool {
	return m.service.Annotations["kube-nftproxy.io/port-ranges"] != "" || m.service.Annotations["networking.cozystack.io/wholeIP"] != ""
}

// inRange draws a port that may be in a range. Endpoints serve the first two of the numbers.
func inRange(w *world) corev1.ServicePort {
	number := lab.One[int32](w.rand, firstPort, secondPort, firstPort, secondPort, firstPort, secondPort, 53, 80, 443,
		8079, 8081, 9091)
	return corev1.ServicePort{Port: number, Protocol: lab.One(w.rand, corev1.ProtocolTCP, corev1.ProtocolUDP)}
}
