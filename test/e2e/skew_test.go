//go:build e2e && skew

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	document "github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// server is an API server of a release, with flags that change what the program finds there.
type server struct {
	release, variant string
	flags            []string
	// without says that the server has no type ServiceCIDR in version v1.
	without bool
}

// servers returns all releases as they are, and with and without the list by watch.
func servers() (list []server) {
	for _, release := range cluster.Releases {
		list = append(list, server{release: release, variant: "default"})
		for _, on := range []string{"true", "false"} {
			gate := "WatchList=" + on
			list = append(list, server{release: release, variant: gate, flags: []string{"--feature-gates=" + gate}})
		}
	}
	// An API server can act as an older one. Before v1.33, ServiceCIDRs were beta, and off.
	const release = "v1.34.3"
	return append(list,
		server{release, "as v1.33", []string{"--emulated-version=1.33"}, false},
		server{release, "as v1.32, no ServiceCIDR", []string{"--emulated-version=1.32"}, true},
		server{release, "as v1.32, ServiceCIDR v1beta1", []string{"--emulated-version=1.32", "--runtime-config=networking.k8s.io/v1beta1=true"}, true})
}

// errAbsent says that a release does not have a feature.
var errAbsent = errors.New("not in this release")

// features are what each API server must bring to the node, proved with packets.
var features = []struct {
	name string
	test func(*testing.T, *world, server) error
}{
	{"both families", skewFamilies},
	{"node port, load balancer, external IP", skewOutside},
	{"session affinity", skewAffinity},
	{"policies `Local`", skewLocal},
	{"`PreferClose`", skewDistribution(corev1.ServiceTrafficDistributionPreferClose)},
	{"`PreferSameNode`", skewDistribution(corev1.ServiceTrafficDistributionPreferSameNode)},
	{"another ServiceCIDR", skewRange},
	{"API server restarts", skewRestart},
}

// TestSkew runs the program with the API servers of all supported releases. OUTPUT names a checkout whose page gets the table.
func TestSkew(t *testing.T) {
	table := "| API server | |"
	for _, f := range features {
		table += " " + f.name + " |"
	}
	table += "\n|---|---|" + strings.Repeat("---|", len(features)) + "\n"
	for _, s := range servers() {
		t.Run(s.release+" "+s.variant, func(t *testing.T) {
			table += fmt.Sprintf("| %s | %s |", s.release, s.variant)
			if _, err := cluster.BuildRelease(t.Context(), os.Stderr, s.release, "kube-apiserver"); err != nil {
				// A registry of modules may lack one of a release.
				table += strings.Repeat(" not run |", len(features)) + "\n"
				t.Skip(err)
			}
			w := newSkewWorld(t, s)
			for _, f := range features {
				cell := "✗"
				t.Run(f.name, func(t *testing.T) {
					part := *w
					part.T = t
					switch err := f.test(t, &part, s); {
					case errors.Is(err, errAbsent):
						cell = errAbsent.Error()
					case err != nil:
						t.Error(err)
					default:
						cell = "✓"
					}
				})
				table += " " + cell + " |"
			}
			table += "\n"
		})
	}
	t.Logf("\n%s", table)
	if root := os.Getenv("OUTPUT"); root != "" && !t.Failed() {
		must(t, document.Write(filepath.Join(root, "docs", "conformance.md"), "skew", table))
	}
}

// newSkewWorld starts an API server and the program. The node is in zone a.
func newSkewWorld(t *testing.T, s server) *world {
	t.Helper()
	w := &world{T: t, Lab: lab.ForTest(t, lab.Config{Pods: 3, Remotes: 2}), dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	config := cluster.Config{
		Dir: filepath.Join(w.dir, "cluster"), Netns: w.Node.Netns, Address: w.Node.IPv4, Flags: s.flags, Release: s.release,
		WithoutServiceCIDRs: s.without,
	}
	var err error
	if w.api, err = cluster.Start(ctx, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.api.Stop)
	version, err := w.api.Client().Discovery().ServerVersion()
	if err != nil || version.GitVersion != s.release && !strings.HasPrefix(s.variant, "as ") {
		t.Fatalf("the API server says %v, error %v; want %s", version, err, s.release)
	}
	node := node()
	node.Labels = map[string]string{corev1.LabelTopologyZone: "a"}
	w.apply(node)
	w.serve(w.Pods[0], w.Pods[1], w.Remotes[0], w.Remotes[1])
	w.start().awaitIdle(patience)
	return w
}

// publish creates a Service and its endpoints. It is deleted at the end of the test.
func (w *world) publish(svc *corev1.Service, endpoints ...[2]discoveryv1.Endpoint) error {
	w.Helper()
	if err := w.api.Apply(w.Context(), svc); err != nil {
		return err
	}
	w.Cleanup(func() {
		if err := w.api.Delete(context.WithoutCancel(w.Context()), svc); err != nil {
			w.Error(err)
		}
	})
	for f, family := range inet.Families {
		var list []discoveryv1.Endpoint
		for _, e := range endpoints {
			list = append(list, e[f])
		}
		s := slice(svc.Name, fmt.Sprintf("%s-%v", svc.Name, strings.ToLower(fmt.Sprint(family))), list...)
		w.apply(s)
		w.Cleanup(func() {
			if err := w.api.Delete(context.WithoutCancel(w.Context()), s); err != nil {
				w.Error(err)
			}
		})
	}
	return nil
}

func dualStack(name string) *corev1.Service {
	return service(name, corev1.IPv4Protocol, corev1.IPv6Protocol)
}

func skewFamilies(t *testing.T, w *world, _ server) error {
	if err := w.publish(dualStack("web"), endpointsOf(w.Pods[0]), endpointsOf(w.Remotes[0])); err != nil {
		return err
	}
	for _, to := range w.clusterIPs("web") {
		reach(t, w.Pods[2], to, "pod-0", "remote-0")
		reach(t, w.Node, to, "pod-0", "remote-0")
	}
	w.applySlices("more", endpointsOf(w.Pods[1]))
	for _, to := range w.clusterIPs("web") {
		reach(t, w.Pods[2], to, "pod-0", "pod-1", "remote-0")
	}
	for _, name := range []string{"web-more-0", "web-more-1"} {
		w.delete(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, to := range w.clusterIPs("web") {
		reach(t, w.Pods[2], to, "pod-0", "remote-0")
	}
	return nil
}

func skewOutside(_ *testing.T, w *world, _ server) error {
	if err := w.publish(balanced(), endpointsOf(w.Pods[0]), endpointsOf(w.Remotes[0])); err != nil {
		return err
	}
	w.reachWeb("pod-0", "remote-0")
	return nil
}

func skewAffinity(t *testing.T, w *world, _ server) error {
	svc := dualStack("sticky")
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	if err := w.publish(svc, endpointsOf(w.Pods[0]), endpointsOf(w.Pods[1])); err != nil {
		return err
	}
	for _, to := range w.clusterIPs(svc.Name) {
		eventually(t, patience, func() error {
			counts, err := w.Pods[2].Spread(t.Context(), inet.TCP, to, 30, lab.Options{})
			if err == nil && (len(counts) != 1 || counts["pod-0"]+counts["pod-1"] != 30) {
				err = fmt.Errorf("%s: %v, want all from one pod", to, counts)
			}
			return err
		})
	}
	return nil
}

func skewLocal(t *testing.T, w *world, _ server) error {
	svc := dualStack("near")
	local := corev1.ServiceInternalTrafficPolicyLocal
	svc.Spec.InternalTrafficPolicy = &local
	svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = 30081, 30081
	if err := w.publish(svc, endpointsOf(w.Pods[0]), endpointsOf(w.Remotes[0])); err != nil {
		return err
	}
	for i, to := range w.clusterIPs(svc.Name) {
		reach(t, w.Pods[2], to, "pod-0")
		reach(t, w.Client, netip.AddrPortFrom(w.Node.Addrs()[i], 30081), "pod-0")
	}
	return nil
}

// skewDistribution writes the hints that the controller writes for a distribution. Their fields, and the distribution, may be missing.
func skewDistribution(distribution string) func(*testing.T, *world, server) error {
	return func(t *testing.T, w *world, _ server) error {
		svc := dualStack("spread")
		svc.Spec.TrafficDistribution = &distribution
		near, far := endpointsOf(w.Pods[0]), endpointsOf(w.Remotes[0])
		for f := range near {
			if distribution == corev1.ServiceTrafficDistributionPreferSameNode {
				near[f].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: nodeName}}}
				far[f].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: otherNode}}}
				continue
			}
			near[f].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
			far[f].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}}}
		}
		if err := w.publish(svc, near, far); apierrors.IsInvalid(err) {
			return errAbsent
		} else if err != nil {
			return err
		}
		slices, err := w.api.Client().DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=spread"})
		if err != nil {
			return err
		}
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				if e.Hints == nil || len(e.Hints.ForZones)+len(e.Hints.ForNodes) == 0 {
					return errAbsent // the API server has dropped the field
				}
			}
		}
		for _, to := range w.clusterIPs(svc.Name) {
			reach(t, w.Pods[2], to, "pod-0")
		}
		return nil
	}
}

// skewRange adds a ServiceCIDR: its Services are served, and its unused addresses are refused by the node.
func skewRange(t *testing.T, w *world, s server) error {
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.123.0.0/24", "fd00:10:123::/112"}},
		// The test's cluster has no controller for this.
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
		}}},
	}
	unused := []string{"10.123.0.98", "fd00:10:123::98"}
	for _, address := range unused {
		if err := skewUnused(t, w, address, lab.Refused); err != nil {
			return err
		}
	}
	err := w.api.Apply(t.Context(), more)
	if s.without {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the API server has ServiceCIDRs in version v1: %v", err)
		}
		_, err = w.api.Client().NetworkingV1beta1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
		if beta := strings.Contains(s.variant, "v1beta1"); beta != (err == nil) {
			return fmt.Errorf("ServiceCIDRs in version v1beta1: %v, want them %t", err, beta)
		}
		return errAbsent
	}
	if err != nil {
		return err
	}
	svc := dualStack("more")
	svc.Spec.ClusterIPs = []string{"10.123.0.99", "fd00:10:123::99"}
	svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	eventually(t, patience, func() error { return w.api.Apply(t.Context(), svc) }) // the allocator learns of the range by a watch
	if err := w.publish(svc, endpointsOf(w.Pods[0])); err != nil {
		return err
	}
	for i, to := range w.clusterIPs(svc.Name) {
		reach(t, w.Pods[2], to, "pod-0")
		if err := skewUnused(t, w, unused[i], lab.TimedOut); err != nil {
			return err
		}
	}
	return nil
}

// skewUnused waits for the outcome of a connection to an unused address. The client, to which the node's default route leads, has that
// address and refuses the connection, unless it is in a ServiceCIDR: such packets do not leave the node.
func skewUnused(t *testing.T, w *world, address string, want lab.Outcome) error {
	if out, err := w.Client.Command(t.Context(), "ip", "address", "replace", address, "dev", "lo", "nodad").CombinedOutput(); err != nil {
		return fmt.Errorf("address of the client: %w\n%s", err, out)
	}
	return await(t.Context(), patience, func() error {
		if got := w.Pods[2].Probe(t.Context(), inet.TCP, addrPort(address), lab.Options{}); got.Outcome != want {
			return fmt.Errorf("unused address %s: %v, want %s", address, got, want)
		}
		return nil
	})
}

// skewRestart changes a Service while the API server is down for the program, and expects the new state after it.
func skewRestart(t *testing.T, w *world, _ server) error {
	if err := w.publish(dualStack("web"), endpointsOf(w.Pods[0])); err != nil {
		return err
	}
	for _, to := range w.clusterIPs("web") {
		reach(t, w.Pods[2], to, "pod-0")
	}
	addresses := w.clusterIPs("web")
	w.api.KillServer()
	for _, to := range addresses {
		reach(t, w.Pods[2], to, "pod-0")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := w.api.RestartServer(ctx); err != nil {
		return err
	}
	for f, family := range inet.Families {
		w.apply(slice("web", fmt.Sprintf("web-%v", strings.ToLower(fmt.Sprint(family))), endpointsOf(w.Pods[1])[f]))
	}
	for _, to := range addresses {
		reach(t, w.Pods[2], to, "pod-1")
	}
	return nil
}
