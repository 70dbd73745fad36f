package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The objects have the texts of objects in a real cluster: names with hashes, UIDs, labels, owners, managed fields. These texts are most of what
// the API server sends, and random texts compress badly. A Service is as Helm installs it. An EndpointSlice is as kube-controller-manager writes it,
// for pods of a Deployment. All random texts are drawn from names: an object that changes keeps its texts, and each run has the same objects.

// draw returns random bytes of a name.
func draw(kind, name string) [sha256.Size]byte { return sha256.Sum256([]byte(kind + " " + name)) }

// uid returns a random UUID, of version 4.
func uid(kind, name string) types.UID {
	b := draw(kind, name)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16]))
}

// suffix returns random letters, as Kubernetes appends them to names.
func suffix(name string, n int) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	b := draw("suffix", name)
	for i := range n {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b[:n])
}

// created returns a random time of the year before a fixed day.
func created(name string) metav1.Time {
	const day, year = 1_780_000_000, 365 * 24 * 3600
	b := draw("created", name)
	return metav1.NewTime(time.Unix(day-int64(binary.BigEndian.Uint32(b[:]))%year, 0))
}

// one returns a random element.
func one(list []string, kind, name string) string { return list[int(draw(kind, name)[0])%len(list)] }

var (
	teams = []string{"payments", "search", "identity", "media", "logistics", "billing", "growth", "risk", "partners", "platform", "shop", "data-science", "support"}
	apps  = []string{"checkout", "redis", "orders", "catalog", "sessions", "postgresql", "invoices", "mailer", "pricing", "recommender",
		"inventory", "gateway", "auth", "profiles", "reports", "scheduler", "images", "webhooks", "ledger", "audit-log"}
	parts = []string{"api", "web", "primary", "metrics", "grpc", "backend", "cache", "admin", "worker", "frontend"}
)

// nameOf returns the name of a Service. Each namespace has one Service of each app.
func nameOf(i int) types.NamespacedName {
	number, app := i/len(apps), apps[i%len(apps)]
	namespace := fmt.Sprintf("%s-%d", one(teams, "team", fmt.Sprint(number)), number)
	return types.NamespacedName{Namespace: namespace, Name: app + "-" + one(parts, "part", namespace+"/"+app)}
}

// special returns the name of a Service with a purpose of its own.
func special(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// serviceOf returns a Service with a cluster IP and a port, with all values that the API server would set.
func serviceOf(name types.NamespacedName, addr netip.Addr) *corev1.Service {
	release, version := name.Namespace+"-"+name.Name, draw("version", name.String())
	selector := map[string]string{"app.kubernetes.io/name": name.Name, "app.kubernetes.io/instance": release}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name, UID: uid("Service", name.String()), CreationTimestamp: created(name.String()),
			Labels: map[string]string{
				"app.kubernetes.io/managed-by": "Helm",
				"app.kubernetes.io/version":    fmt.Sprintf("%d.%d.%d", version[0]%20, version[1]%40, version[2]%20),
				"helm.sh/chart":                fmt.Sprintf("%s-%d.%d.%d", name.Name, version[3]%20, version[4]%40, version[5]%20),
			},
			Annotations:   map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": name.Namespace},
			ManagedFields: managed("helm", "v1", created(name.String()), fieldsOfService),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: addr.String(), ClusterIPs: []string{addr.String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), SessionAffinity: corev1.ServiceAffinityNone,
			Selector: selector,
			Ports:    []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromString("http")}},
		},
	}
	maps.Copy(s.Labels, selector)
	if addr.Is6() {
		s.Spec.IPFamilies[0] = corev1.IPv6Protocol
	}
	if draw("hints", name.String())[0] < 256/8 {
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	}
	return s
}

// sliceOf returns an EndpointSlice of a Service, by the number of the slice.
func sliceOf(s *corev1.Service, number int, port int32, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("%s/%s-%d", s.Namespace, s.Name, number)
	changed := created(name)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-" + suffix(name, 5), GenerateName: s.Name + "-", Generation: 1 + int64(draw("generation", name)[0]),
			UID: uid("EndpointSlice", name), CreationTimestamp: s.CreationTimestamp,
			Labels:      map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: changed.UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID, Controller: new(true), BlockOwnerDeletion: new(true)}},
			ManagedFields: managed("kube-controller-manager", discoveryv1.SchemeGroupVersion.String(), changed, fmt.Sprintf(fieldsOfSlice, s.UID)),
		},
		AddressType: discoveryv1.AddressType(s.Spec.IPFamilies[0]),
		Ports:       []discoveryv1.EndpointPort{{Name: &s.Spec.Ports[0].Name, Protocol: &s.Spec.Ports[0].Protocol, Port: &port}},
	}
	maps.Copy(slice.Labels, s.Labels)
	for _, addr := range addrs {
		slice.Endpoints = append(slice.Endpoints, endpointAt(s, addr))
	}
	return slice
}

// endpointAt returns the endpoint of the pod with an address. An eighth of the Services has hints. They have no effect, because the measured Node has
// no zone: each Service has as many endpoints as its size says.
func endpointAt(s *corev1.Service, addr netip.Addr) discoveryv1.Endpoint {
	const nodes = 1000
	pod := s.Name + "-" + suffix(s.Namespace+"/"+s.Name, 10) + "-" + suffix(addr.String(), 5) // the Deployment, its ReplicaSet, the pod
	at := draw("address", addr.String())
	number := int(binary.BigEndian.Uint16(at[:])) % nodes
	b := draw("node", fmt.Sprint(number))
	node, zone := fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", b[0]%8, b[1], b[2]), "eu-central-1"+string("abc"[number%3])
	e := discoveryv1.Endpoint{
		Addresses:  []string{addr.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		NodeName:   &node, Zone: &zone,
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: pod, UID: uid("Pod", addr.String())},
	}
	if s.Spec.TrafficDistribution != nil {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	return e
}

// managed returns the entry for the fields that a program has set.
func managed(program, version string, at metav1.Time, fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: program, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}}
}

// The fields that Helm sets in a Service, and kube-controller-manager in an EndpointSlice of an owner with a UID, as the API server records them.
const (
	fieldsOfService = `{"f:metadata":{"f:annotations":{".":{},"f:meta.helm.sh/release-name":{},"f:meta.helm.sh/release-namespace":{}},` +
		`"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},` +
		`"f:app.kubernetes.io/version":{},"f:helm.sh/chart":{}}},"f:spec":{"f:internalTrafficPolicy":{},` +
		`"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},` +
		`"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`
	fieldsOfSlice = `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},` +
		`"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},` +
		`"f:app.kubernetes.io/version":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:helm.sh/chart":{},"f:kubernetes.io/service-name":{}},` +
		`"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:ports":{}}`
)
