package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// seedOf returns what the environment variable SEED says, or a new seed.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("SEED: %v", err)
	}
	return seed
}

// sizes are those of sets: they follow the most that a set has ever held.
var sizes = regexp.MustCompile(`\n\t\tsize [0-9]+`)

// A thousand random changes, one by one, lead to where a fresh start with the last state does.
func TestRandomHistoryEndsLikeAFreshStart(t *testing.T) {
	const operations, compareEvery = 1000, 100
	seed := seedOf(t)
	t.Logf("SEED=%d", seed)
	hosts := lab.ForTest(t, lab.Config{})
	folder := t.TempDir()
	writeCommon(t, folder)
	s, err := parseSettings(nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := startPipeline(hosts.Node, s, folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(rand.New(rand.NewPCG(seed, 1)), folder)
	for n := 1; n <= operations; n++ {
		what, err := w.change()
		if err = errors.Join(err, p.load()); err != nil {
			t.Fatalf("SEED=%d: operation %d, %s: %v", seed, n, what, err)
		}
		if w.rand.IntN(20) == 0 {
			if err := p.retire(); err != nil {
				t.Fatalf("SEED=%d: retire chains after operation %d, %s: %v", seed, n, what, err)
			}
		}
		if n%compareEvery == 0 {
			compare(t, p, s, hosts, fmt.Sprintf("SEED=%d: after operation %d, %s", seed, n, what))
		}
	}
}

func writeCommon(t *testing.T, folder string) {
	t.Helper()
	shared, err := os.ReadFile(common)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "cluster.yaml"), shared, 0o600); err != nil {
		t.Fatal(err)
	}
}

// compare programs the present state into the client's namespace, and lists both.
func compare(t *testing.T, p *pipeline, s settings, hosts *lab.Lab, when string) {
	t.Helper()
	nft := programs()[0]
	state, err := planFolder(hosts.Node, s, p.folder)
	if err = errors.Join(err, p.retire()); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if err := state.program(hosts.Client); err != nil {
		t.Fatalf("%s: program a fresh namespace: %v", when, err)
	}
	once, err1 := nft.list(hosts.Client)
	grown, err2 := nft.list(hosts.Node)
	if err := errors.Join(err1, err2, cleanUp(hosts.Client)); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	once, grown = sizes.ReplaceAllString(once, ""), sizes.ReplaceAllString(grown, "")
	if diff := cmp.Diff(canonical(once), canonical(grown)); diff != "" {
		t.Fatalf("%s: nft list ruleset (-programmed at once +step by step):\n%s", when, diff)
	}
}

// world is a small cluster in which everything meets everything: names, addresses and node ports are few.
type world struct {
	rand     *rand.Rand
	folder   string
	services map[string]*member
	created  int
}

// member is a Service with its slices.
type member struct {
	service corev1.Service
	slices  []discoveryv1.EndpointSlice
}

const members = 14

func newWorld(r *rand.Rand, folder string) *world {
	return &world{rand: r, folder: folder, services: map[string]*member{}}
}

// change does one random thing and writes it into the folder.
func (w *world) change() (what string, err error) {
	name := fmt.Sprintf("svc-%d", w.rand.IntN(members))
	path := filepath.Join(w.folder, name+".json")
	m := w.services[name]
	switch {
	case m == nil:
		m = w.create(name)
		w.services[name] = m
		what = "create " + name
	case w.rand.IntN(25) == 0:
		delete(w.services, name)
		return "delete " + name, os.Remove(path)
	default:
		change := changes[w.rand.IntN(len(changes))]
		change.do(w, m)
		what = change.name + " of " + name
	}
	return what, m.write(path)
}

func (m *member) write(path string) error {
	list := struct {
		metav1.TypeMeta `json:",inline"`
		Items           []any `json:"items"`
	}{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, []any{m.service}}
	for _, s := range m.slices {
		list.Items = append(list.Items, s)
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func (w *world) create(name string) *member {
	w.created++
	m := &member{service: corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(1_700_000_000+int64(w.created), 0),
		},
	}}
	w.address(m)
	w.ports(m)
	w.endpoints(m)
	return m
}

// changes are what can happen to a Service.
var changes = []struct {
	name string
	do   func(*world, *member)
}{
	{"endpoints", (*world).endpoints}, {"endpoints", (*world).endpoints}, {"endpoints", (*world).endpoints},
	{"one endpoint", (*world).oneEndpoint}, {"one endpoint", (*world).oneEndpoint},
	{"ports", (*world).ports},
	{"cluster IPs", (*world).address},
	{"type", (*world).serviceType},
	{"external IPs", (*world).externalIPs},
	{"load-balancer IPs", (*world).balancers},
	{"source ranges", (*world).sourceRanges},
	{"policies", (*world).policies},
	{"affinity", (*world).affinity},
}

// some draws up to most of n numbers, without duplicates.
func (w *world) some(n, most int) []int {
	return w.rand.Perm(n)[:w.rand.IntN(most+1)]
}

// address draws cluster IPs; now and then it is another Service's.
func (w *world) address(m *member) {
	i := w.rand.IntN(2 * members)
	four, six := fmt.Sprintf("10.96.0.%d", i+1), fmt.Sprintf("fd00:10:96::%x", i+1)
	spec := &m.service.Spec
	switch w.rand.IntN(5) {
	case 0:
		spec.ClusterIPs = []string{four}
	case 1:
		spec.ClusterIPs = []string{six}
	default:
		spec.ClusterIPs = []string{four, six}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
}

var portPool = []corev1.ServicePort{
	{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
	{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP},
	{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
	{Name: "dns", Port: 53, Protocol: corev1.ProtocolTCP},
	{Name: "sig", Port: 36412, Protocol: corev1.ProtocolSCTP},
}

func (w *world) ports(m *member) {
	m.service.Spec.Ports = nil
	for _, i := range w.some(len(portPool), 3) {
		p := portPool[i]
		if w.rand.IntN(6) == 0 {
			p.Port += 1000
		}
		m.service.Spec.Ports = append(m.service.Spec.Ports, p)
	}
	w.nodePorts(m)
}

func (w *world) serviceType(m *member) {
	types := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}
	m.service.Spec.Type = types[w.rand.IntN(len(types))]
	m.service.Spec.HealthCheckNodePort = 0
	w.nodePorts(m)
}

func (w *world) nodePorts(m *member) {
	for i := range m.service.Spec.Ports {
		p := &m.service.Spec.Ports[i]
		p.NodePort = 0
		if t := m.service.Spec.Type; t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer {
			p.NodePort = int32(30000 + w.rand.IntN(2*members))
		}
	}
}

func (w *world) externalIPs(m *member) {
	m.service.Spec.ExternalIPs = nil
	for _, i := range w.some(4, 2) {
		m.service.Spec.ExternalIPs = append(m.service.Spec.ExternalIPs, []string{
			"198.51.100.1", "198.51.100.2", "2001:db8:1::1", "2001:db8:1::2",
		}[i])
	}
}

func (w *world) balancers(m *member) {
	m.service.Status.LoadBalancer.Ingress = nil
	for _, i := range w.some(4, 2) {
		ip := []string{"203.0.113.1", "198.51.100.1", "2001:db8:2::1", "2001:db8:1::1"}[i]
		m.service.Status.LoadBalancer.Ingress = append(m.service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
}

func (w *world) sourceRanges(m *member) {
	m.service.Spec.LoadBalancerSourceRanges = nil
	for _, i := range w.some(6, 3) {
		m.service.Spec.LoadBalancerSourceRanges = append(m.service.Spec.LoadBalancerSourceRanges, []string{
			"192.0.2.0/24", "192.0.2.64/26", "10.0.0.0/8", "203.0.113.128/25", "2001:db8::/32", "2001:db8:1::/48",
		}[i])
	}
}

func (w *world) policies(m *member) {
	internal := []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}
	external := []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal}
	m.service.Spec.InternalTrafficPolicy = &internal[w.rand.IntN(2)]
	m.service.Spec.ExternalTrafficPolicy = external[w.rand.IntN(2)]
}

func (w *world) affinity(m *member) {
	spec := &m.service.Spec
	spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if timeout := []int32{0, 60, 10800}[w.rand.IntN(3)]; timeout > 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
}

// endpoints draws all endpoints anew, in up to two slices for each family.
func (w *world) endpoints(m *member) {
	m.slices = nil
	for n := range 2 * 2 {
		if w.rand.IntN(4) == 0 {
			continue
		}
		six := n%2 == 1
		s := discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: fmt.Sprintf("%s-%d", m.service.Name, n),
				Labels: map[string]string{discoveryv1.LabelServiceName: m.service.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{},
		}
		if six {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		for _, p := range portPool {
			number := int32(8080 + w.rand.IntN(2))
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &number, Protocol: &p.Protocol})
		}
		for _, i := range w.some(12, 6) {
			s.Endpoints = append(s.Endpoints, w.endpoint(six, i))
		}
		m.slices = append(m.slices, s)
	}
}

func (w *world) endpoint(six bool, i int) discoveryv1.Endpoint {
	node, format := []string{nodeName, "node-2"}[i%2], "10.244.%d.%d"
	if six {
		format = "fd00:10:244:%d::%x"
	}
	e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, i%2, i+10)}, NodeName: &node}
	ready, terminating := w.rand.IntN(4) > 0, w.rand.IntN(2) == 0
	if !ready {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating}
	}
	return e
}

// oneEndpoint adds, removes or replaces one endpoint of one slice.
func (w *world) oneEndpoint(m *member) {
	if len(m.slices) == 0 {
		return
	}
	s := &m.slices[w.rand.IntN(len(m.slices))]
	if n := len(s.Endpoints); n > 0 && w.rand.IntN(3) > 0 {
		at := w.rand.IntN(n)
		s.Endpoints = append(s.Endpoints[:at:at], s.Endpoints[at+1:]...)
	}
	if w.rand.IntN(3) > 0 {
		s.Endpoints = append(s.Endpoints, w.endpoint(s.AddressType == discoveryv1.AddressTypeIPv6, w.rand.IntN(12)))
	}
}
