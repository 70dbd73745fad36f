package console

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/loopback"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/manifests"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// idleLoop is a loop with facts, and without conflicts and starting endpoints.
type idleLoop struct {
	Loop
	facts proxy.Facts
}

func (l *idleLoop) Facts() proxy.Facts { return l.facts }
func (l *idleLoop) Conflicts(context.Context, []types.NamespacedName) ([]plan.Conflict, error) {
	return nil, nil
}
func (l *idleLoop) Starts(context.Context) (map[types.NamespacedName]*model.Starts, error) {
	return nil, nil
}

const consoleObjects = `
{apiVersion: v1, kind: Node, metadata: {name: node-1}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: c}, spec: {cidrs: [10.96.0.0/16]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}, spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: api}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: other, name: web}, spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: headless}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: ext}, spec: {type: ExternalName, externalName: db.example.com}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.244.0.9], conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-abc}}, {addresses: [10.244.0.10], conditions: {ready: false}}]
`

// newConsole returns a console over consoleObjects.
func newConsole(t *testing.T, objects string, flags ...string) *Console {
	t.Helper()
	o := config.NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	err := fs.Parse(append(flags, "--hostname-override=node-1"))
	if err == nil {
		err = o.Complete(fs)
	}
	lab.Must(t, err)
	s, err := settings.New(o, fs)
	lab.Must(t, err)
	source := manifests.New(watch.Config{NodeName: "node-1", Folder: "/unused", Tracker: track.New(time.Now(), time.Now), Report: func(p model.Problem) { t.Errorf("%s: %s", p.Name, p.Text()) }})
	source.LoadFrom("objects", []byte(objects))
	facts := proxy.Facts{}
	facts.NodeAddresses[inet.IPv4] = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	facts.ServiceCIDRs[inet.IPv4] = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	return New(Parts{
		Settings: s, Source: source, Loop: &idleLoop{facts: facts}, Broken: func(types.NamespacedName) []string { return nil },
		Connections: func(keys []model.Key, _ time.Duration) ([]counters.Counts, error) {
			return make([]counters.Counts, len(keys)), nil
		},
		LoopbackAt: func(model.Key) (netip.AddrPort, error) { return netip.AddrPort{}, nil }, LoopbackState: func() loopback.State { return loopback.State{} },
		Clients: func() []affinity.State {
			return []affinity.State{{Limit: 1600, Most: 65, Crowded: true, Namespace: "evil", Service: types.NamespacedName{Namespace: "evil", Name: "web"}}, {Family: inet.IPv6}}
		},
	})
}

// TestRequestedServices: a query finds Services by name and by address. The answer has a reason for each name or address without a Service.
func TestRequestedServices(t *testing.T) {
	c := newConsole(t, consoleObjects)
	for _, tc := range []struct {
		query
		want    string
		missing []string
	}{
		{query{}, "other/web shop/api shop/web", nil},
		{query{namespace: "shop"}, "shop/api shop/web", nil},
		{query{wanted: []string{"web"}}, "other/web shop/web", nil},
		{query{namespace: "shop", wanted: []string{"web"}}, "shop/web", nil},
		{query{wanted: []string{"shop/web", "other/web", "shop/web"}}, "other/web shop/web", nil},
		{query{wanted: []string{"10.96.0.2"}}, "shop/api", nil},
		{query{wanted: []string{"10.96.0.1:80"}}, "shop/web", nil},
		{query{wanted: []string{"10.244.0.10"}}, "shop/web", nil},
		{query{wanted: []string{"10.244.0.9:8080"}}, "shop/web", nil},
		{query{wanted: []string{"30080"}}, "shop/web", nil},
		{query{wanted: []string{"192.0.2.1:30080"}}, "shop/web", nil},
		{query{namespace: "other", wanted: []string{"30080"}}, "", []string{"no Service that this node serves has 30080"}},
		{query{wanted: []string{"10.96.7.7"}}, "", []string{"it is an address of a ServiceCIDR"}},
		{query{wanted: []string{"10.9.9.9:80", "shop/api"}}, "shop/api", []string{"no Service that this node serves has 10.9.9.9:80, and no endpoint of such a Service"}},
		{query{wanted: []string{"shop/headless"}}, "", []string{"except for Services that it does not serve: headless ones"}},
		{query{wanted: []string{"shop/ext"}}, "", []string{"headless ones, type ExternalName"}},
		{query{wanted: []string{"shop/wbe", "nosuch"}}, "", []string{"did you mean shop/web?", "there is no Service nosuch in the manifests"}},
	} {
		v, err := c.services(t.Context(), tc.query)
		lab.Must(t, err)
		var names []string
		for _, s := range v.Services {
			names = append(names, s.Namespace+"/"+s.Name)
		}
		if strings.Join(names, " ") != tc.want || len(v.NotFound) != len(tc.missing) {
			t.Errorf("%+v: %q and %q, want %q", tc.query, names, v.NotFound, tc.want)
			continue
		}
		for i, m := range tc.missing {
			if !strings.Contains(v.NotFound[i], m) {
				t.Errorf("%+v: %q, want %q", tc.query, v.NotFound[i], m)
			}
		}
	}
	c.Tables.RouteUnused = true
	v, err := c.services(t.Context(), query{wanted: []string{"10.96.7.7"}})
	lab.Must(t, err)
	if len(v.NotFound) != 1 || !strings.Contains(v.NotFound[0], "in mode iptables, packets to it follow the routes of this node") {
		t.Errorf("an unused address in mode iptables: %q", v.NotFound)
	}
	names, err := c.names(t.Context(), nil)
	if want := []string{"other/web", "shop/api", "shop/web"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("names for completion: %q, %v; want %q", names, err, want)
	}
	if _, err := c.services(t.Context(), query{selector: "app=web"}); err == nil {
		t.Error("a label selector is accepted without an API server")
	}
}

// TestObjects: a console whose source has read the objects of another console sends the same objects.
func TestObjects(t *testing.T) {
	page := func(c *Console) string {
		w := httptest.NewRecorder()
		c.objects(w, httptest.NewRequestWithContext(t.Context(), "GET", "/objects?kind=Node&kind=ServiceCIDR&kind=Service", nil))
		return w.Body.String()
	}
	first := page(newConsole(t, consoleObjects))
	if n := strings.Count(first, "\n"); n != 6 {
		t.Errorf("%d objects, want 6:\n%s", n, first)
	}
	if again := page(newConsole(t, first)); again != first {
		t.Errorf("the objects change:\n%s\n%s", first, again)
	}
}

// TestPodsOfManifests: manifests have the names of pods.
func TestPodsOfManifests(t *testing.T) {
	c := newConsole(t, consoleObjects)
	v, err := c.services(t.Context(), query{wanted: []string{"shop/web"}})
	if err != nil || len(v.Services) != 1 || v.Services[0].Ports[0].Endpoints[0].Pod+v.Services[0].Ports[0].Endpoints[1].Pod != "web-abc" {
		t.Errorf("%+v, %v", v, err)
	}
	if list, err := c.pod(t.Context(), "shop", "web-abc"); err != nil || !slices.Equal(list, []string{"10.244.0.9"}) {
		t.Errorf("addresses of pod web-abc: %q, %v", list, err)
	}
	if _, err := c.pod(t.Context(), "shop", "nosuch"); err == nil || !strings.Contains(err.Error(), "pod shop/nosuch is not an endpoint of a Service") {
		t.Errorf("the error for an unknown pod: %v", err)
	}
}

// TestPodsAndLabels queries the API server for data that the program does not store.
func TestPodsAndLabels(t *testing.T) {
	slice := func(name, service, pod, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"kubernetes.io/service-name": service}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{address}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod}},
				{Addresses: []string{"10.9.9.9"}}, {Addresses: []string{"10.9.9.8"}, TargetRef: &corev1.ObjectReference{Kind: "VM", Name: pod}},
			},
		}
	}
	c := newConsole(t, consoleObjects)
	client := fake.NewClientset(
		slice("web-1", "web", "web-abc", "10.244.0.9"), slice("api-1", "api", "api-abc", "10.244.0.10"), slice("api-2", "api", "api-abc", "fd00::10"),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "api"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "web", Labels: map[string]string{labelServiceProxyName: "other"}}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.21", ClusterIPs: []string{"10.96.0.21", "fd00:10:96::21"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, ExternalIPs: []string{"203.0.113.21"},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 443, NodePort: 30443}},
		}},
	)
	c.API = NewAPI(func() (string, string) { return "", "" }, &kubeapi.Client{
		Services: func(namespace string) kubeapi.Reader[*corev1.ServiceList] { return client.CoreV1().Services(namespace) },
		EndpointSlices: func(namespace string) kubeapi.Reader[*discoveryv1.EndpointSliceList] {
			return client.DiscoveryV1().EndpointSlices(namespace)
		},
	}, nil)
	v, err := c.services(t.Context(), query{selector: "app=web"})
	if err != nil || len(v.Services) != 1 || v.Services[0].Name != "web" {
		t.Errorf("Services with the label: %+v, %v; want shop/web", v, err)
	}
	v, err = c.services(t.Context(), query{wanted: []string{"shop/web"}})
	if err != nil || len(v.Services) != 1 || v.Unanswered != 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	for want, says := range map[string]string{
		"10.96.0.21":           "Service mesh/web has 10.96.0.21, and is not served by kube-nftproxy: its label service.kubernetes.io/service-proxy-name=other assigns it to another proxy",
		"[fd00:10:96::21]:443": "Service mesh/web has", "203.0.113.21": "Service mesh/web has", "30443": "Service mesh/web has",
		"10.96.0.21:80": "no Service has 10.96.0.21:80, and no endpoint of a Service that this node serves; it is an address of a ServiceCIDR", "10.96.0.22": "no Service has 10.96.0.22",
	} {
		v, err := c.services(t.Context(), query{wanted: []string{want}})
		if err != nil || len(v.NotFound) != 1 || !strings.HasPrefix(v.NotFound[0], says) {
			t.Errorf("%s: %+v, %v; want %q", want, v, err, says)
		}
	}
	pods := map[string]string{}
	for _, e := range v.Services[0].Ports[0].Endpoints {
		pods[e.Address] = e.Pod
	}
	if pods["10.244.0.9:8080"] != "web-abc" || pods["10.244.0.10:8080"] != "" {
		t.Errorf("pods of shop/web: %v, want web-abc for 10.244.0.9", pods)
	}
	c.API.lost = time.Now().Add(-time.Hour)
	if v, err := c.services(t.Context(), query{wanted: []string{"shop/web"}}); err != nil || v.Unanswered != 3600 {
		t.Errorf("an hour without the API server: %+v, %v", v, err)
	}
	c.Snapshot = func() (time.Time, error) { return time.Now().Add(-2 * time.Hour), nil }
	if v, err := c.services(t.Context(), query{wanted: []string{"shop/web"}}); err != nil || v.Unanswered != 7200 {
		t.Errorf("with a snapshot of two hours ago: %+v, %v", v, err)
	}
	if list, err := c.pod(t.Context(), "shop", "api-abc"); err != nil || !slices.Equal(list, []string{"10.244.0.10", "fd00::10"}) {
		t.Errorf("addresses of pod api-abc: %q, %v", list, err)
	}
	if _, err := c.pod(t.Context(), "shop", "cart"); err == nil || !strings.Contains(err.Error(), "pod shop/cart is not an endpoint of a Service") {
		t.Errorf("the error for an unknown pod: %v", err)
	}
}

// TestCrowdedMapsAreFindings: a map of remembered clients with too many is one finding, which names the Service and the
// limit.
func TestCrowdedMapsAreFindings(t *testing.T) {
	list := newConsole(t, consoleObjects).crowded()
	if len(list) != 1 || list[0].Reason != view.AffinityFull || list[0].Object != "Service evil/web" || !strings.Contains(list[0].What, "the limit of a namespace, 65,") {
		t.Errorf("%+v", list)
	}
}

// TestPortsWithoutDirectReturn: a service port for which the planner has no direct server return is shown with the
// algorithm and the shares of NAT, and with the reason.
func TestPortsWithoutDirectReturn(t *testing.T) {
	name := model.PortName{Port: "http"}
	endpoint := netip.MustParseAddrPort("10.244.0.1:80")
	port := model.PortExplanation{
		ServicePort: &model.ServicePort{
			Name: name, Protocol: inet.TCP, Cluster: []netip.AddrPort{endpoint},
			Method: balance.Method{Key: balance.Flow}, Direct: &model.Direct{},
		},
		Candidates: []model.Candidate{{Addr: endpoint}},
	}
	x := &model.Explanation{Ports: []model.PortExplanation{port}}
	for _, c := range []struct {
		protocol inet.Protocol
		want     string
	}{
		{inet.UDP, `{true maglev 100} []`},
		{inet.TCP, `{false  0} [IPv4 port "http" uses NAT: no room]`},
	} {
		s := &view.Service{Ports: []view.ServicePort{{
			Name: "http", Family: "IPv4", DirectReturn: true, Algorithm: "maglev", Endpoints: []view.Endpoint{{Share: 100}},
		}}}
		addNAT(s, x, []plan.NAT{{Port: name, Protocol: c.protocol, Reason: "no room"}})
		p := s.Ports[0]
		got := fmt.Sprintf("{%v %s %v} %v", p.DirectReturn, p.Algorithm, p.Endpoints[0].Share, s.Notes)
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.protocol, got, c.want)
		}
	}
}
