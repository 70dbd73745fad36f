package hostile

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/oracle"
)

// The defaults make each run the same.
const (
	defaultSeed  = 1
	defaultSteps = 30
)

// TestHistories makes random steps: hostile acts of one or several namespaces, ordinary changes of bank, and faults:
// restarts, reboots, a flush. After some steps, a new node joins. After each step, these properties must hold:
//
//   - Packets to bank's addresses have the result that the oracle predicts from bank's objects alone.
//   - Each cluster IP of a Service with an endpoint answers.
//   - All other addresses that answered before the step still answer, unless the step changed their Service or was a
//     reboot.
//   - No address with source ranges answers another source.
//   - The number of elements stays within a limit that adds up.
//
// At the end, the last applies to log lines. HOSTILE_SEED and HOSTILE_STEPS select other histories.
func TestHistories(t *testing.T) {
	t.Parallel()
	for _, room := range []struct {
		name  string
		flags []string
	}{{"default room", nil}, {"little room", []string{
		"--limits=node-elements=2000,node-source-ranges=40,node-port-ranges=10",
	}}} {
		t.Run(room.name, func(t *testing.T) {
			t.Parallel()
			histories(t, room.flags...)
		})
	}
}

func histories(t *testing.T, flags ...string) {
	seed, steps := lab.Setting(t, "HOSTILE_SEED", defaultSeed), lab.Setting(t, "HOSTILE_STEPS", defaultSteps)
	h := &history{
		node: newBank(t, flags...), rand: rand.New(rand.NewPCG(uint64(seed), 15)),
		evil: map[string][]runtime.Object{}, twins: twins(300),
		names: []string{collide("evil"), collide("aaa")}, claims: map[string][]claim{}, answer: map[string]bool{},
	}
	h.serveVictims()
	h.drawBank()
	h.synced("bank", h.bank...)
	h.follows("at the start")
	first, before, lines := h.bank, h.elements(), h.lines()
	h.forgetPeak()
	for step := range steps {
		what := h.step()
		when := fmt.Sprintf("HOSTILE_SEED=%d, step %d, after %s", seed, step+1, what)
		h.follows(when)
		h.keeps(when)
		objects := slices.Concat(append(values(h.evil), h.bank)...)
		h.written += len(objects)
		if got, most := h.elements(), before+mostElements(objects); got > most {
			t.Fatalf("%s: %d elements, want at most %d", when, got, most)
		}
		if h.rand.IntN(8) == 0 {
			h.joined(func(n *node) {
				j := *h
				j.node, j.clients, j.answer = n, oracle.Memory{}, map[string]bool{}
				j.follows(when + ", on a new node")
				j.keeps(when + ", on a new node")
			})
		}
	}
	t.Logf("%d probes of addresses of others than bank, %d of them need no answer", h.probes, h.without)
	h.atMost("log lines", float64(h.lines()-lines), float64(1_000+10*h.written+linesOfAStart*h.starts))
	h.atMost("MiB of memory", h.memory("VmHWM"), mostMemory)
	for file := range h.evil {
		h.drop(file)
	}
	h.bank = first
	h.synced("bank", h.bank...)
	h.follows("after the deletion of all objects of evil")
	h.until(patience, "the removal", func() error {
		if got := h.elements(); got > before {
			return fmt.Errorf("%d elements, want at most %d", got, before)
		}
		return nil
	})
}

// linesOfAStart is more than the number of problems that a process reports in ten minutes.
const linesOfAStart = 600

// values returns the values of a map, sorted by their keys.
func values[T any](m map[string]T) (list []T) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[name])
	}
	return list
}

// history has a node, the tenants' objects, and the state of session affinity.
type history struct {
	*node
	rand  *rand.Rand
	evil  map[string][]runtime.Object
	bank  []runtime.Object
	twins []netip.Addr
	names []string
	// clients has the endpoints of bank's clients with session affinity.
	clients oracle.Memory
	// written is the number of objects that were written so far, starts the number of restarts and reboots.
	written, starts int
	// claims are the addresses of the Services that use up room, by file. answer has those that answered after the
	// last step.
	claims map[string][]claim
	answer map[string]bool
	// probes is the number of probes of claims. without is the number of those that need no answer.
	probes, without int
}

// claim is an address of a Service that only this Service claims.
type claim struct {
	to string
	// owned is true for a cluster IP, which needs no room.
	owned bool
	// restricted is true if the address answers only the client.
	restricted bool
}

// acts are evil's actions. Each changes a Service of evil, and returns other objects. The last one is more frequent
// than the others.
var acts = []struct {
	name string
	do   func(*history, *corev1.Service) []runtime.Object
}{
	{"twins", func(h *history, s *corev1.Service) []runtime.Object {
		s.Spec.ClusterIPs = []string{"fd00:10:96::666"}
		s.Spec.Ports = sticky(s).Spec.Ports
		if h.rand.IntN(3) == 0 {
			s.Spec.SessionAffinity = ""
		}
		list := lab.Some(h.rand, h.twins, 250)
		return slicesOf(s.Namespace+"/"+s.Name, []string{"https"}, int32(lab.One(h.rand, 1, 8080, 8443)),
			append(list, h.Pods[2].IPv6))
	}},
	{"a name of bank's number", func(h *history, s *corev1.Service) []runtime.Object {
		s.Namespace, s.Name = split(lab.One(h.rand, h.names...))
		sticky(s)
		return h.endpoints(s)
	}},
	{"unusable addresses", func(h *history, s *corev1.Service) []runtime.Object {
		s.Spec.ExternalIPs = slices.Repeat([]string{lab.One(h.rand, "1::", "239.1.1.1", "127.0.0.1", "bad", "")},
			h.rand.IntN(3_000))
		return h.endpoints(s)
	}},
	{"a product", func(h *history, s *corev1.Service) []runtime.Object {
		s.Spec.Ports = ports(lab.One(h.rand, 1, 65_500), 1+h.rand.IntN(30))
		s.Spec.ExternalIPs = texts(addresses("198.18.0.1", h.rand.IntN(60), 1))
		return h.endpoints(s)
	}},
	{"bank's addresses", func(h *history, s *corev1.Service) []runtime.Object {
		s.Spec.ExternalIPs = lab.Some(h.rand, boundaryAddresses, len(boundaryAddresses))
		s.Spec.Ports = append(ports(8443, 1), corev1.ServicePort{Name: "u", Protocol: corev1.ProtocolUDP, Port: 8443})
		return h.endpoints(s)
	}},
	{"bank's name", func(h *history, s *corev1.Service) []runtime.Object {
		s.Name = "pay"
		sticky(s)
		return h.endpoints(s)
	}},
	{"long names", func(h *history, s *corev1.Service) []runtime.Object {
		s.Name = strings.Repeat("x", lab.One(h.rand, 63, 253))
		s.Spec.Ports[0].Name = strings.Repeat("y", 63)
		return h.endpoints(s)
	}},
	{"boundary numbers", func(h *history, s *corev1.Service) []runtime.Object {
		sticky(s)
		s.Spec.Ports[0].Port = lab.One[int32](h.rand, -1, 0, 1, 65_535, 65_536, math.MaxInt32)
		s.Spec.Ports[0].NodePort = lab.One[int32](h.rand, 0, 1, 65_535, 70_000)
		s.Spec.Ports[0].Protocol = lab.One(h.rand, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP,
			"ICMP")
		s.Spec.Type = corev1.ServiceTypeNodePort
		timeout := lab.One[int32](h.rand, math.MinInt32, 0, 1, 86_400, 86_401, math.MaxInt32)
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		return h.endpoints(s)
	}},
	{"source ranges", func(h *history, s *corev1.Service) []runtime.Object {
		s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, []corev1.LoadBalancerIngress{{IP: "203.0.113.66"}}
		s.Spec.LoadBalancerSourceRanges = append(ranges(h.rand.IntN(300)),
			lab.Some(h.rand, []string{"0.0.0.0/0", "0.0.0.0/1", "198.18.0.0/15", "198.18.0.0/32", "255.255.255.255/32",
				"10.0.0.1/8", "::/0", "bad", ""}, 9)...)
		s.Spec.Ports = ports(1, 1+h.rand.IntN(10))
		return h.endpoints(s)
	}},
	{"much room", (*history).useUp},
}

// useUp makes many Services that use up quantities of the node, and notes their addresses. Each file has its own
// addresses.
func (h *history) useUp(s *corev1.Service) []runtime.Object {
	var number int
	_, err := fmt.Sscanf(s.Name, "evil-%d", &number)
	lab.Must(h.T, err)
	c := &crew{namespace: s.Namespace, prefix: s.Name + "-", number: number}
	client := h.Client.IPv4.String() + "/32"
	for range lab.One(h.rand, 3, 20, 60) {
		var one *corev1.Service
		port := uint16(80)
		switch h.rand.IntN(5) {
		case 0:
			one = c.add(ports(80, 1+h.rand.IntN(20)), nil)
		case 1:
			one = c.add(ports(80, 1), restricted([]int{0, 10, 62, 400}[h.rand.IntN(4)]))
			one.Spec.LoadBalancerSourceRanges = append(one.Spec.LoadBalancerSourceRanges, client)
			to := one.Status.LoadBalancer.Ingress[0].IP + ":80"
			h.claims[s.Name] = append(h.claims[s.Name], claim{to: to, restricted: true})
		case 2:
			one = c.add(ports(80, 1+h.rand.IntN(100)), remembers(timeouts[h.rand.IntN(len(timeouts))]))
		case 3:
			one, port = c.add(ports(80, 1), annotated("port-ranges", victimRange)), rangedPort
		case 4:
			one = c.add(ports(80, 1), annotated("max-connections", "1000"))
		}
		pods := []netip.Addr{h.Pods[0].IPv4}
		if port == backendPort || port == 80 {
			pods = addresses("10.244.16.1", 1+h.rand.IntN(10), 1)
		}
		c.list = append(c.list, slice(one.Namespace+"/"+one.Name, 0, portNames(one.Spec.Ports), backendPort, pods...))
		h.claims[s.Name] = append(h.claims[s.Name], claim{to: one.Spec.ClusterIP + ":80", owned: true})
		if port != 80 {
			h.claims[s.Name] = append(h.claims[s.Name], claim{to: fmt.Sprintf("%s:%d", one.Spec.ClusterIP, port)})
		}
	}
	return append(c.list, h.endpoints(s)...)
}

// disclaim forgets the addresses of a file.
func (h *history) disclaim(file string) {
	for _, c := range h.claims[file] {
		delete(h.answer, c.to)
	}
	delete(h.claims, file)
}

// keeps checks a random part of the claims: see [TestHistories].
func (h *history) keeps(when string) {
	h.Helper()
	const most = 80
	claims := slices.Concat(values(h.claims)...)
	if len(claims) > most {
		h.rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
		claims = claims[:most]
	}
	begin := time.Now()
	for _, c := range claims {
		must, wait := c.owned || h.answer[c.to], soon
		if h.probes++; !must {
			h.without++
			wait = soon / 4
		}
		got := h.ask(h.Client, c.to, wait)
		for must && !strings.HasPrefix(got, "pod-") && time.Since(begin) < patience {
			got = h.ask(h.Client, c.to, wait)
		}
		h.answer[c.to] = strings.HasPrefix(got, "pod-")
		if must && !h.answer[c.to] {
			h.Fatalf("%s: %s: %s, want an answer", when, c.to, got)
		}
		if !c.restricted {
			continue
		}
		if got := h.ask(h.Pods[3], c.to, soon/4); got != "timed out" {
			h.Fatalf("%s: %s for a source that is not allowed: %s, want it timed out", when, c.to, got)
		}
	}
}

// boundaryAddresses are bank's addresses, addresses next to them, and the ends of prefixes, some of them not in canonical form.
var boundaryAddresses = []string{
	"10.96.0.10", "fd00:10:96::10", "203.0.113.10", "::ffff:10.96.0.10", "010.096.000.010", " 10.96.0.10", "fd00:10:96:0::10", "10.96.0.0",
	"10.96.255.255", "fd00:10:96::ffff", "0.0.0.0", "255.255.255.255", "255.255.255.254", "::", "fe80::1%eth0", "203.0.113.11",
}

// step makes one random step, and returns its name: acts of one or several namespaces, an ordinary change of bank, or
// a fault.
func (h *history) step() (what string) {
	switch n, file := h.rand.IntN(24), h.file(); {
	case n < 4:
		h.drawBank()
		h.synced("bank", h.bank...)
		return "bank's own change"
	case n < 6 && h.evil[file] != nil:
		delete(h.evil, file)
		h.disclaim(file)
		h.drop(file)
		h.settle()
		return "a removal"
	case n < 9:
		h.starts++
		h.Kill()
		h.start()
		return "a restart"
	case n == 9:
		h.nft("flush", "ruleset")
		h.clients.Forget()
		return "a flush"
	case n == 10:
		h.starts++
		h.Kill()
		h.nft("flush", "ruleset")
		h.clients.Forget()
		clear(h.answer)
		h.start()
		return "a reboot"
	}
	var names []string
	for range lab.One(h.rand, 1, 1, 2, 3) {
		names = append(names, h.act())
	}
	h.settle()
	return strings.Join(names, ", and ")
}

// file returns the name of a random file of evil.
func (h *history) file() string { return fmt.Sprintf("evil-%d", h.rand.IntN(6)) }

// act writes one of evil's files, and returns the name of the act. Two files each belong to a namespace.
func (h *history) act() string {
	file := h.file()
	namespace := []string{"aevil", "evil", "zevil"}[int(file[len(file)-1]-'0')%3]
	a := acts[h.rand.IntN(len(acts))]
	if h.rand.IntN(3) == 0 {
		a = acts[len(acts)-1]
	}
	h.disclaim(file)
	s := service(namespace+"/"+file, fmt.Sprintf("10.96.6.%d", 1+h.rand.IntN(6)))
	s.Spec.Ports = ports(80, 1)
	others := a.do(h, s)
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	h.evil[file] = append([]runtime.Object{s}, others...)
	h.put(file, h.evil[file]...)
	return a.name
}

// endpoints returns slices with random endpoints: evil's pods, unused addresses, bank's cluster IP and the node.
func (h *history) endpoints(s *corev1.Service) []runtime.Object {
	list := lab.Some(h.rand, append(addresses("10.244.16.1", 20, 1),
		h.Pods[2].IPv4, h.Pods[3].IPv4, netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.0.2.1")), 24)
	return slicesOf(s.Namespace+"/"+s.Name, portNames(s.Spec.Ports), int32(lab.One(h.rand, 1, backendPort, 65_535)),
		list)
}

// drawBank replaces bank's objects with random ones.
func (h *history) drawBank() {
	s := bankService()
	s.Spec.LoadBalancerSourceRanges = lab.One(h.rand, nil, []string{"192.0.2.0/24"}, []string{"198.51.100.0/24"},
		[]string{"192.0.2.100/32", "10.244.0.12/32"})
	if h.rand.IntN(2) == 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	h.clients.Forget()
	h.bank = []runtime.Object{s}
	for number, list := range [][]netip.Addr{{h.Pods[0].IPv4, h.Pods[1].IPv4}, {h.Pods[0].IPv6, h.Pods[1].IPv6}} {
		if list = lab.Some(h.rand, list, 2); len(list) > 0 {
			h.bank = append(h.bank, slice("bank/pay", number, []string{"https"}, backendPort, list...))
		}
	}
}

// follows waits until packets have the results that bank's objects require, and checks that this lasts.
func (h *history) follows(when string) {
	h.Helper()
	truth := h.oracle()
	h.until(patience, when+": bank's packets", func() error { return h.check(truth, false) })
	for range 3 {
		if err := h.check(truth, true); err != nil {
			h.Fatalf("%s: %v", when, err)
		}
	}
}

// oracle returns an oracle for bank's objects, the Node and the ServiceCIDRs.
func (h *history) oracle() *oracle.Oracle {
	var all oracle.Objects
	for _, o := range append(clusterObjects(), h.bank...) {
		all.Add(o)
	}
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
	return oracle.New(all, oracle.Machine{
		Name: "node-1", Addresses: []netip.Addr{h.Node.IPv4, h.Node.IPv6},
		LocalPod: func(p oracle.Packet) bool { return pods[0].Contains(p.From) || pods[1].Contains(p.From) },
		Pods:     [2]netip.Prefix(pods),
	})
}

// check opens connections from the client, a pod of evil and the node to each of bank's addresses and to unused ports. If memory is true, clients
// must keep their endpoints.
func (h *history) check(truth *oracle.Oracle, memory bool) error {
	for _, from := range []*lab.Host{h.Client, h.Pods[2], h.Node} {
		for _, to := range append([]string{"10.96.0.10:1", "[fd00:10:96::10]:1"}, bankAddresses...) {
			if err := h.one(truth, from, netip.MustParseAddrPort(to), memory); err != nil {
				return err
			}
		}
	}
	return nil
}

// one opens one connection and compares its result with the oracle's.
func (h *history) one(truth *oracle.Oracle, from *lab.Host, to netip.AddrPort, memory bool) error {
	p := oracle.Packet{From: from.Addr(to.Addr()), Device: from.Device, To: to, Protocol: corev1.ProtocolTCP}
	if from == h.Node && h.Node.Addr(to.Addr()) == to.Addr() {
		p.From = to.Addr()
	}
	v := truth.Ask(p)
	if memory {
		v = h.clients.Narrow(v, p.From, time.Now())
	}
	options := lab.Options{Timeout: soon}
	switch {
	case v.Outcome == oracle.Dropped:
		options.Timeout = 30 * time.Millisecond
	case memory:
		options.Timeout = surely
	}
	got := from.Probe(h.Context(), inet.TCP, to, options)
	wrong := fmt.Errorf("%s -> %s: %v, want %s by %v", from.Name, to, got, v.Outcome, v.Endpoints)
	switch {
	case got.Outcome == lab.Answered && v.Outcome == oracle.Answered:
		for _, e := range v.Endpoints {
			if e.AddrPort == got.Local {
				h.clients.Note(v, p.From, e.AddrPort, time.Now())
				return nil
			}
		}
		return wrong
	case got.Outcome == lab.Refused && v.Outcome == oracle.Refused, got.Outcome == lab.TimedOut && v.Outcome == oracle.Dropped:
		return nil
	}
	return wrong
}
