package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
)

// nodeName is the Node whose proxy is measured.
const nodeName = "node-1"

// world is the cluster with its Services.
type world struct {
	*cluster.Cluster
	settings
	changed int
}

// fill makes the Node, and the Services with one EndpointSlice each.
func (w *world) fill(ctx context.Context) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	if err := w.Apply(ctx, node); err != nil {
		return err
	}
	template, err := w.Client().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "template"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.200",
			Ports:     []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	store := w.Store(ctx)
	for i := range w.services {
		svc := template.DeepCopy()
		svc.Name = serviceName(i)
		svc.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250)
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		store.Service(svc)
		store.Slice(w.slice(i, 0))
	}
	return store.Flush()
}

func serviceName(i int) string { return fmt.Sprintf("svc-%d", i) }

// slice returns the endpoints of a Service; two rounds differ by one endpoint.
func (w *world) slice(i, round int) *discoveryv1.EndpointSlice {
	name, protocol, port, ready := "http", corev1.ProtocolTCP, int32(8080), true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: serviceName(i) + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
	for e := range w.endpoints {
		n := i*w.endpoints + e
		addr := fmt.Sprintf("10.%d.%d.%d", 128+n/62500, n/250%250, 1+n%250)
		if e == 0 && round > 0 {
			addr = fmt.Sprintf("10.127.%d.%d", round/250, 1+round%250)
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// change replaces one endpoint of some Service; the API server has answered when it returns.
func (w *world) change(ctx context.Context) error {
	w.changed++
	i := w.changed * 7919 % w.services
	_, err := w.Client().DiscoveryV1().EndpointSlices("default").Update(ctx, w.slice(i, w.changed), metav1.UpdateOptions{})
	return err
}

// kernel returns the kernel's version without what a distribution adds to it.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	version, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	return version
}

func cpus() int { return runtime.NumCPU() }
