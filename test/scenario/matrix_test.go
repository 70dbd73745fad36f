package scenario

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The matrix has all combinations of address, client, traffic policies, placement of endpoints, session affinity, IP
// family and protocol, once for each mode. Each mode also has host ports. Its packets are those of a history of one
// step, so the oracle predicts them, and a failure becomes a scenario.

// mode is a command line, and a property that all Services of the matrix have.
type mode struct {
	detector      detector
	masqueradeAll bool
	choice        choice
}

// detector is a way to recognise the traffic of local pods, with its name on the page.
type detector string

const (
	byClusterCIDR detector = "ClusterCIDR"
	byNodeCIDR    detector = "NodeCIDR"
	byBridge      detector = "BridgeInterface"
	byPrefix      detector = "InterfaceNamePrefix"
	byNothing     detector = "ClusterCIDR without --cluster-cidr"
)

var detectors = []detector{byClusterCIDR, byNodeCIDR, byBridge, byPrefix, byNothing}

// bridge is the name of the bridge in the lab that has one.
const bridge = "cni0"

// detectorFlags are the flags of scenarios for them. pkg/settings has a test of the program's flag --detect-local-mode.
var detectorFlags = map[detector]string{
	byNodeCIDR: "--cluster-cidr=10.244.0.0/24,fd00:10:244::/64", byBridge: "--pod-bridge-interface=" + bridge,
	byPrefix: "--pod-interface-name-prefix=veth-pod", byNothing: "--cluster-cidr=",
}

// choice names the annotations of all Services.
type choice string

const (
	random        choice = "random"
	weights       choice = "weights"     // the first endpoint has a greater weight; there are two more, of weight 0
	ranges        choice = "port ranges" // and the Services scale to zero
	rangesSources choice = "port ranges with source ranges"
	vipsReady     choice = "VIPs answer ping while ready and refuse all unused ports"
	vipsAlways    choice = "VIPs always answer ping, and external IPs refuse unused ports"
)

// portRanges is the annotation of Services with port ranges.
const portRanges = `kube-nftproxy.io/port-ranges: "tcp/8000-8999,udp/8000-8999"`

var choiceAnnotations = map[choice]string{
	"source-hash":                  "kube-nftproxy.io/lb-algorithm: source-hash",
	"maglev":                       "kube-nftproxy.io/lb-algorithm: maglev",
	"maximum":                      `kube-nftproxy.io/max-connections: "1000", kube-nftproxy.io/slow-start: "60"`,
	ranges:                         portRanges + `, kube-nftproxy.io/scale-to-zero: "true"`,
	"port ranges with source-hash": portRanges + ", kube-nftproxy.io/lb-algorithm: source-hash",
	rangesSources: portRanges +
		`, kube-nftproxy.io/external-ip-source-ranges: "10.244.0.0/24,fd00:10:244::/64,192.0.2.0/24,2001:db8::/64"` +
		`, kube-nftproxy.io/denied-source-ranges: "192.0.2.100/32,2001:db8::100/128"`,
}

func (c choice) ranged() bool { return strings.HasPrefix(string(c), string(ranges)) }

// kubeProxyFlags are the flags that also kube-proxy has.
func (m mode) kubeProxyFlags() (flags []string) {
	if flag, ok := detectorFlags[m.detector]; ok {
		flags = append(flags, flag)
	}
	if m.masqueradeAll {
		flags = append(flags, "--masquerade-all")
	}
	return flags
}

// flags returns the command line. In the modes with masquerade-all, it has flags that affect no packet to a port of a
// Service.
func (m mode) flags() []string {
	flags := m.kubeProxyFlags()
	switch {
	case m.choice.ranged():
		flags = append(flags, "--node-port-ranges=32000")
	case m.choice == vipsAlways:
		flags = append(flags, "--refuse-unused-ports=198.51.100.0/24,2001:db8:1::/64", "--answer-ping=always")
	case m.choice == vipsReady || m.masqueradeAll:
		flags = append(flags, "--refuse-unused-ports=all", "--answer-ping=ready", "--count-connections=false")
	}
	return flags
}

// base is the mode that includes SCTP. docs/semantics.md compares the others with it.
var base = mode{byClusterCIDR, false, random}

// modes returns all settings of the program that kube-proxy has, too.
func modes() (all []mode) {
	for _, masqueradeAll := range []bool{false, true} {
		for _, d := range detectors {
			all = append(all, mode{d, masqueradeAll, random})
		}
	}
	return all
}

// playedModes returns the same with different choices, and the modes with port ranges, ping and unused ports.
func playedModes() []mode {
	all, choices := modes(), []choice{random, "source-hash", "maglev", weights, "maximum"}
	for i := range all {
		all[i].choice = choices[(i+i/len(detectors))%len(choices)]
	}
	return append(all, mode{byNodeCIDR, false, ranges}, mode{byBridge, true, "port ranges with source-hash"},
		mode{byPrefix, false, rangesSources}, mode{byClusterCIDR, false, vipsReady}, mode{byBridge, true, vipsAlways})
}

// variant is a combination of the properties in which the Services of the matrix differ.
type variant struct {
	internal, external, placement string
	affinity                      bool
}

var policies = []string{"Cluster", "Local"}

// placements are the locations of a Service's endpoints, hosts the names of the endpoints' hosts. An endpoint on the
// host network is this node.
var (
	placements = []string{"local", "remote", "both", "host network", "none"}
	hosts      = map[string][]string{
		"local": {"pod-0", "pod-1"}, "remote": {"remote-0", "remote-1"}, "both": {"pod-0", "pod-1", "remote-0"},
		"host network": {"node"},
	}
)

// variants are all Services of the matrix. A position determines the addresses.
var variants = func() (all []variant) {
	for _, internal := range policies {
		for _, external := range policies {
			for _, p := range placements {
				all = append(all, variant{internal, external, p, false}, variant{internal, external, p, true})
			}
		}
	}
	return all
}()

// destination is a kind of address, in the order in which a client with session affinity connects to them.
type destination string

const (
	toClusterIP destination = "ClusterIP"
	toNodePort  destination = "NodePort"
	toExternal  destination = "externalIP"
	toBalancer  destination = "LB IP"
)

var destinations = []destination{toClusterIP, toNodePort, toExternal, toBalancer}

// address returns an address of the Service number i.
func (d destination) address(i int, f inet.Family) netip.Addr {
	text := map[destination][2]string{
		toClusterIP: {fmt.Sprintf("10.96.1.%d", 10+i), fmt.Sprintf("fd00:10:96::%x", 0x110+i)},
		toExternal:  {fmt.Sprintf("198.51.100.%d", 10+i), fmt.Sprintf("2001:db8:1::%x", 0x10+i)},
		toBalancer:  {fmt.Sprintf("203.0.113.%d", 10+i), fmt.Sprintf("2001:db8:2::%x", 0x10+i)},
		toNodePort:  {"192.0.2.1", "2001:db8::1"},
	}[d][f]
	return netip.MustParseAddr(text)
}

// Ports of the matrix. Every Service has the port for each protocol, and its own node port.
const (
	matrixPort, unusedPort = 80, 81
	firstNodePort          = 30010
)

// manifest returns a Service with its EndpointSlices.
func (v variant) manifest(i int, c choice) string {
	affinity := "None"
	if v.affinity {
		affinity = "ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}"
	}
	address := func(d destination) string {
		return fmt.Sprintf("%q, %q", d.address(i, inet.IPv4), d.address(i, inet.IPv6))
	}
	var ports, slicePorts []string
	for _, p := range []string{"TCP", "UDP", "SCTP"} {
		ports = append(ports, fmt.Sprintf("{name: %[4]s, protocol: %[1]s, port: %[2]d, nodePort: %[3]d}", p, matrixPort, firstNodePort+i, strings.ToLower(p)))
		slicePorts = append(slicePorts, fmt.Sprintf("{name: %[3]s, protocol: %[1]s, port: %[2]d}", p, firstPort, strings.ToLower(p)))
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: matrix, name: svc-%d, annotations: {%s}}
spec:
  {type: LoadBalancer, clusterIP: %q, clusterIPs: [%s], externalIPs: [%s],
  ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack,
  internalTrafficPolicy: %s, externalTrafficPolicy: %s, sessionAffinity: %s, ports: [%s]}
status: {loadBalancer: {ingress: [{ip: %q, ipMode: VIP}, {ip: %q, ipMode: VIP}]}}
`, i, choiceAnnotations[c], toClusterIP.address(i, inet.IPv4), address(toClusterIP), address(toExternal), v.internal, v.external, affinity,
		strings.Join(ports, ", "), toBalancer.address(i, inet.IPv4), toBalancer.address(i, inet.IPv6))
	for _, f := range inet.Families {
		hosts, own := hosts[v.placement], ""
		if c == weights {
			own = fmt.Sprintf("%s=0,%s=0", lab.AddressOf("pod-2", f), lab.AddressOf("remote-2", f))
			if len(hosts) > 0 {
				own += fmt.Sprintf(",%s=11", lab.AddressOf(hosts[0], f))
			}
			own = fmt.Sprintf("service.cilium.io/weight: \"10\", kube-nftproxy.io/weights: %q", own)
			hosts = append(slices.Clone(hosts), "pod-2", "remote-2")
		}
		var endpoints []string
		for _, host := range hosts {
			node := nodeName
			if strings.HasPrefix(host, "remote") {
				node = "node-2"
			}
			endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: {ready: true}}", lab.AddressOf(host, f), node))
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: matrix, name: svc-%[1]d-%[2]d, labels: {kubernetes.io/service-name: svc-%[1]d}, annotations: {%[3]s}}
addressType: %[4]s
ports: [%[5]s]
endpoints: [%[6]s]
`, i, f, own, f, strings.Join(slicePorts, ", "), strings.Join(endpoints, ", "))
	}
	return text
}

// caller is a kind of client, by its name on the page. The node sends from its second address: from the first one,
// endpoints see the same source address with and without masquerading.
type caller struct{ heading, host string }

var callers = []caller{
	{"a pod on this node", "pod-2"}, {"this node", "node"}, {"an external client", "client"}, {"a pod on another node", "remote-2"},
	{"an endpoint on this node", "pod-0"}, {"an endpoint on another node", "remote-0"},
	{"this node's first address", "node"}, // not on the page
}

// cell is a point of the matrix.
type cell struct {
	mode
	variant
	dest     destination
	caller   caller
	family   inet.Family
	protocol corev1.Protocol // empty for ping
}

// possible reports whether the client exists, and whether the mode has the cell: node ports are not in port ranges.
func (c cell) possible() bool {
	exists := !strings.HasPrefix(c.caller.heading, "an endpoint") || slices.Contains(hosts[c.placement], c.caller.host)
	return exists && !(c.choice.ranged() && c.dest == toNodePort)
}

// question returns the packet of a cell.
func (c cell) question() question {
	i, port := slices.Index(variants, c.variant), matrixPort
	switch {
	case c.dest == toNodePort:
		port = firstNodePort + i
	case c.choice.ranged():
		port = firstPort
	case c.choice == vipsReady || c.choice == vipsAlways:
		port = unusedPort
	}
	if c.protocol == "" {
		port = 0
	}
	return c.caller.question(c.dest.address(i, c.family), port, c.protocol)
}

// question returns a packet of a client.
func (who caller) question(to netip.Addr, port int, p corev1.Protocol) question {
	q := question{from: who.host, to: netip.AddrPortFrom(to, uint16(port)), protocol: p}
	if who.host == "node" {
		f := inet.FamilyOf(to)
		q.source = ownAddresses[f]
		if who.heading == "this node" {
			q.source = ownAddresses[2+f]
		}
	}
	return q
}

// cells returns all cells of a mode. A client with session affinity connects to all destinations in sequence, and to
// the cluster IP once more: at another address, the traffic policy may have given the client another endpoint.
func (m mode) cells() (all []cell) {
	protocols, dests := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}, destinations
	vips := m.choice == vipsReady || m.choice == vipsAlways
	switch {
	case vips:
		protocols, dests = append(protocols, ""), []destination{toClusterIP, toExternal, toBalancer}
	case m == base:
		protocols = append(protocols, corev1.ProtocolSCTP)
	}
	for _, v := range variants {
		for _, who := range callers {
			for _, f := range inet.Families {
				for _, p := range protocols {
					to := dests
					if v.affinity {
						to = append(slices.Clone(dests), toClusterIP)
					}
					for _, d := range to {
						if c := (cell{m, v, d, who, f, p}); c.possible() && !(vips && v.affinity) {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

// objects returns the manifests of all Services, by file.
func (m mode) objects() map[string]manifest {
	files := map[string]manifest{}
	for i, v := range variants {
		var objects manifest
		for _, text := range strings.Split(v.manifest(i, m.choice), "---\n") {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(text), &object); err != nil {
				panic(err)
			}
			objects = append(objects, object)
		}
		files[fmt.Sprintf("svc-%d.yaml", i)] = objects
	}
	return files
}

// hostPods are pods of this node with host ports: one at all addresses that serve node ports, and one at a single
// address of each family.
var hostPods = manifest{
	hostPod("pod-0", map[int]string{anyHostPort: ""}),
	hostPod("pod-1", map[int]string{hostPortOf4: nodeAddress(inet.IPv4).String(), hostPortOf6: nodeAddress(inet.IPv6).String()}),
}

// Host ports of the matrix, at any address and at one address of a family.
const anyHostPort, hostPortOf4, hostPortOf6 = 443, 444, 446

// nodeAddress is the primary address of the node.
func nodeAddress(f inet.Family) netip.Addr { return toNodePort.address(0, f) }

// hostPod returns a pod with the name of its host in the lab. hostIPs has its host ports.
func hostPod(name string, hostIPs map[int]string) map[string]any {
	var ports, ips []any
	for _, port := range slices.Sorted(maps.Keys(hostIPs)) {
		for _, p := range hostPortProtocols {
			ports = append(ports, map[string]any{
				"hostPort": port, "containerPort": firstPort, "protocol": string(p), "hostIP": hostIPs[port],
			})
		}
	}
	for _, f := range inet.Families {
		ips = append(ips, map[string]any{"ip": lab.AddressOf(name, f).String()})
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "matrix", "name": name},
		"spec":   map[string]any{"nodeName": nodeName, "containers": []any{map[string]any{"name": "main", "ports": ports}}},
		"status": map[string]any{"phase": "Running", "podIPs": ips},
	}
}

var hostPortProtocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// toHostPorts returns packets of all clients to the host ports, also at an address without them.
func toHostPorts() (list []question) {
	for _, who := range callers {
		for _, f := range inet.Families {
			for _, port := range []int{anyHostPort, hostPortOf4, hostPortOf6} {
				for _, p := range hostPortProtocols {
					list = append(list, who.question(nodeAddress(f), port, p))
				}
			}
		}
	}
	return list
}

func (m mode) history() *history {
	step := &moment{write: m.objects(), packets: toHostPorts()}
	step.write["pods.yaml"] = hostPods
	for _, c := range m.cells() {
		step.packets = append(step.packets, c.question())
	}
	return &history{flags: m.flags(), steps: []*moment{step}}
}

func (m mode) String() string { return strings.Join(append(m.flags(), string(m.choice)), ", ") }

// newMatrixLab returns a lab in which a pod on this node and one on another node are not endpoints.
func newMatrixLab(t *testing.T, m mode) *lab.Lab {
	config := lab.Config{Pods: 3, Remotes: 3}
	if m.detector == byBridge {
		config.Bridge = bridge
	}
	return newLabOf(t, config)
}

// TestMatrix sends the packets of all cells in each mode. The oracle predicts their outcomes.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, m := range playedModes() {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			p := newPlayer(newMatrixLab(t, m))
			p.thorough = true
			h := m.history()
			if f := p.play(h); f != nil {
				t.Error(f)
				t.Fatal(p.shrunk(h, f, "matrix"))
			}
			if sent, cells := len(p.lastPlay[0].packets), len(h.steps[0].packets); sent < cells*9/10 {
				t.Errorf("only %d packets for %d cells", sent, cells)
			}
			t.Log(p.tally())
		})
	}
}
