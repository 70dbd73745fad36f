//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// sharedIP is claimed by two Services.
const sharedIP = "203.0.113.9"

// TestMalformedObjects writes objects that the API server accepts and that cannot be programmed. Everything else keeps working,
// and each such object is reported once.
func TestMalformedObjects(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2})
	w.serve(w.Pods[0])
	w.apply(service("good"), slice("good", "good-1", endpoint(w.Pods[0].IPv4)))
	d := w.start()
	reach(t, w.Pods[1], w.clusterIPs("good")[0], "pod-0")

	w.apply(w.odd()...)
	testRefused(t, w)
	// These are valid although they look unusual.
	for _, name := range []string{"good", "fqdn", "conditions", "first", "second", "twice", "half", "algorithm"} {
		reach(t, w.Pods[1], w.clusterIPs(name)[0], "pod-0")
	}
	reach(t, w.Client, addrPort(sharedIP), "pod-0")
	// These have no endpoints.
	for _, name := range []string{"empty", "portless", "orphan"} {
		reach(t, w.Pods[1], w.clusterIPs(name)[0])
	}
	reach(t, w.Pods[1], w.clusterIPs("half")[1])

	loser := w.younger("first", "second")
	want := map[string]int{
		"NotProgrammed EndpointSlice fqdn-2": 1, "NotProgrammed EndpointSlice orphan-1": 1, "NotProgrammed Service " + loser: 2,
		"NotProgrammed Service algorithm": 1, "NotProgrammed EndpointSlice algorithm-1": 1,
	}
	eventually(t, patience, func() error { return compareEvents(w, "NotProgrammed", want) })
	w.apply(w.touched()...)
	w.apply(slice("good", "good-1", endpoint(w.Pods[0].IPv4), endpoint(w.Pods[1].IPv4)))
	eventually(t, patience, func() error {
		m, err := d.scrape()
		if elements, _ := m.Sum("kubenftproxy_elements"); err != nil || elements == 0 {
			return fmt.Errorf("no elements: %w", err)
		}
		return nil
	})
	never(t, 3*time.Second, func() error { return compareEvents(w, "NotProgrammed", want) })

	// The slice without a Service belongs to none, so it is not counted.
	m := d.awaitIdle(patience)
	got := map[string]float64{
		"Service":       m[`kubenftproxy_rejected_objects{kind="Service"}`],
		"EndpointSlice": m[`kubenftproxy_rejected_objects{kind="EndpointSlice"}`],
		"conflicts":     m["kubenftproxy_conflicts"],
	}
	lab.Same(t, map[string]float64{"Service": 1, "EndpointSlice": 2, "conflicts": 2}, got, "rejected objects")
	for object, n := range map[string]int{"default/fqdn-2": 1, "default/orphan-1": 1, "default/" + loser: 2, "default/algorithm": 1, "default/algorithm-1": 1} {
		if lines := d.lines("Part of an object cannot be used", fmt.Sprintf("object=%q", object)); len(lines) != n {
			t.Errorf("%d lines in the log about %s, want %d: %q", len(lines), object, n, lines)
		}
	}
	t.Run("on 100 nodes", func(t *testing.T) { testOneEventForAllNodes(t, w, loser) })
	t.Run("demand", func(t *testing.T) { testWake(t, w, d) })
}

// odd returns the accepted objects.
func (w *world) odd() []runtime.Object {
	pod := endpoint(w.Pods[0].IPv4)
	claim := func(name string) *corev1.Service {
		s := service(name)
		s.Spec.ExternalIPs = []string{sharedIP}
		return s
	}
	fqdn := slice("fqdn", "fqdn-2", pod)
	fqdn.AddressType = discoveryv1.AddressTypeFQDN
	fqdn.Endpoints[0].Addresses = []string{"db.example.com"}
	portless := slice("portless", "portless-1", pod)
	portless.Ports = nil
	orphan := slice("orphan", "orphan-1", pod)
	orphan.Labels = nil
	unconditional := slice("conditions", "conditions-1", pod)
	unconditional.Endpoints = []discoveryv1.Endpoint{{Addresses: pod.Addresses}}
	algorithm, weight := service("algorithm"), slice("algorithm", "algorithm-1", pod)
	algorithm.Annotations = map[string]string{"kube-nftproxy.io/lb-algorithm": "least-conn"}
	weight.Annotations = map[string]string{"service.cilium.io/weight": "heavy"}
	return []runtime.Object{
		algorithm, weight,
		service("fqdn"), slice("fqdn", "fqdn-1", pod), fqdn,
		service("portless"), portless,
		service("orphan"), orphan,
		service("conditions"), unconditional,
		claim("first"), slice("first", "first-1", pod),
		claim("second"), slice("second", "second-1", pod),
		service("twice"), slice("twice", "twice-1", pod, pod), slice("twice", "twice-2", terminating(pod)),
		service("empty"),
		service("half", corev1.IPv4Protocol, corev1.IPv6Protocol), slice("half", "half-1", pod),
	}
}

// touched returns the same objects with an irrelevant change.
func (w *world) touched() []runtime.Object {
	objs := w.odd()
	for _, obj := range objs {
		all := map[string]string{"example.com/touched": "yes"}
		maps.Copy(all, obj.(metav1.Object).GetAnnotations())
		obj.(metav1.Object).SetAnnotations(all)
	}
	return objs
}

// testRefused writes objects that the API server must reject.
func testRefused(t *testing.T, w *world) {
	balanced := service("garbage")
	balanced.Spec.Type = corev1.ServiceTypeLoadBalancer
	balanced.Spec.LoadBalancerSourceRanges = []string{"everybody"}
	low := service("garbage")
	low.Spec.Type = corev1.ServiceTypeNodePort
	low.Spec.Ports = []corev1.ServicePort{{Port: 22, NodePort: 22}}
	refused := []runtime.Object{balanced, low}
	for _, address := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1"} {
		external := service("garbage")
		external.Spec.ExternalIPs = []string{address}
		refused = append(refused, external, slice("good", "good-2", endpoint(addrPort(address).Addr())))
	}
	for _, obj := range refused {
		if err := w.api.Apply(t.Context(), obj); !apierrors.IsInvalid(err) {
			t.Errorf("write %T: %v, want it to be refused as invalid: %+v", obj, err, obj)
		}
	}
}
