package scenario

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// pods are the pods with host ports of a world. Their random source is their own, so the rest of a history does not
// depend on them.
type pods struct {
	rand    *rand.Rand
	byName  map[string]*corev1.Pod
	clients clients
}

// mostPods is the largest number of pods with host ports.
const mostPods = 4

func newPods(r *rand.Rand) *pods {
	senders := clients{rand: r, name: "pod-flow", most: lab.One(r, 0, 2)}
	return &pods{rand: r, byName: map[string]*corev1.Pod{}, clients: senders}
}

// step sometimes changes a pod, and sends packets to host ports.
func (w *pods) step(m *moment) {
	if w.rand.IntN(3) == 0 {
		w.change(m)
	}
	for range 4 {
		m.packets = append(m.packets, w.question())
	}
	m.packets = append(m.packets, w.clients.goOn(w.question())...)
}

// change creates a pod, deletes one, replaces one by another of the same name, or changes the state of one.
func (w *pods) change(m *moment) {
	name := fmt.Sprintf("pod-%d", w.rand.IntN(mostPods))
	switch pod := w.byName[name]; {
	case pod != nil && w.rand.IntN(4) == 0:
		delete(w.byName, name)
		m.delete(name + ".yaml")
		return
	case pod != nil && w.rand.IntN(2) == 0:
		w.state(pod)
	default:
		w.byName[name] = w.create(name)
	}
	m.put(name+".yaml", manifest{tree(w.byName[name])})
}

// create draws a pod, mostly one of this node. Some pods are as old as a Service.
func (w *pods) create(name string) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(1_700_000_000+w.rand.Int64N(2*members), 0),
			Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeName, HostNetwork: w.rand.IntN(20) == 0,
			Containers:     []corev1.Container{w.container("one"), w.container("two")},
			InitContainers: []corev1.Container{w.container("init"), w.container("sidecar")},
		},
	}
	pod.Spec.InitContainers[1].RestartPolicy = &always
	if w.rand.IntN(20) == 0 {
		pod.Spec.NodeName = "node-2"
	}
	for _, a := range model.Annotations { // annotations of Services do not apply to pods
		if w.rand.IntN(8) == 0 {
			pod.Annotations[a.Name] = lab.One(w.rand, a.Samples...)
		}
	}
	w.state(pod)
	return pod
}

// hostPortPool has the numbers of host ports. The node listens on some of them itself. See also [pods.container].
var hostPortPool = []corev1.ContainerPort{
	{HostPort: 80, Protocol: corev1.ProtocolTCP},
	{HostPort: 53, Protocol: corev1.ProtocolUDP},
	{HostPort: 443, Protocol: corev1.ProtocolTCP},
	{HostPort: 443, Protocol: corev1.ProtocolUDP},
	{HostPort: 36412, Protocol: corev1.ProtocolSCTP},
	{HostPort: firstPort, Protocol: corev1.ProtocolTCP},
	{HostPort: firstPort, Protocol: corev1.ProtocolUDP},
	{HostPort: 0, Protocol: corev1.ProtocolTCP}, // no host port
}

// container draws a container with up to two ports. Some host ports are node ports of Services, too.
func (w *pods) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "image", Ports: lab.Some(w.rand, hostPortPool, 2)}
	for i := range c.Ports {
		p := &c.Ports[i]
		p.ContainerPort = lab.One[int32](w.rand, firstPort, secondPort)
		if w.rand.IntN(3) == 0 {
			own := lab.One(w.rand, ownAddresses...).String()
			p.HostIP = lab.One(w.rand, "0.0.0.0", "::", own, own, own, "127.0.0.1")
		}
		if p.HostPort != 0 && w.rand.IntN(2) == 0 {
			p.HostPort = 30000 + w.rand.Int32N(serviceIPs)
		}
	}
	return c
}

// state draws the addresses and the phase of a pod, and whether it is in deletion.
func (w *pods) state(pod *corev1.Pod) {
	at := lab.One(w.rand, endpointPool[:2]...)
	four, six := corev1.PodIP{IP: at.four}, corev1.PodIP{IP: at.six}
	both := []corev1.PodIP{four, six}
	pod.Status.PodIPs = lab.One(w.rand, both, both, both, []corev1.PodIP{six, four}, both[:1], both[1:], nil)
	const running = corev1.PodRunning
	pod.Status.Phase = lab.One(w.rand, running, running, running, running, corev1.PodPending, corev1.PodSucceeded,
		corev1.PodFailed)
	if pod.DeletionTimestamp = nil; w.rand.IntN(4) == 0 {
		pod.DeletionTimestamp = &metav1.Time{Time: pod.CreationTimestamp.Time}
	}
}

// question draws a packet to an address of the node, mostly to the number of a host port.
func (w *pods) question() question {
	var ports []corev1.ContainerPort
	for _, name := range slices.Sorted(maps.Keys(w.byName)) {
		for _, c := range slices.Concat(w.byName[name].Spec.Containers, w.byName[name].Spec.InitContainers) {
			ports = append(ports, c.Ports...)
		}
	}
	if len(ports) == 0 || w.rand.IntN(6) == 0 {
		ports = hostPortPool
	}
	port := lab.One(w.rand, ports...)
	addr := lab.One(w.rand, slices.Concat(ownAddresses, ownAddresses[:2], ownAddresses[:2])...)
	return questionTo(w.rand, addr, corev1.ServicePort{Port: max(port.HostPort, 1), Protocol: port.Protocol})
}

// writesPods reports whether a step creates or changes pods.
func (m *moment) writesPods() bool {
	for _, objects := range m.write {
		for _, o := range objects {
			if o["kind"] == "Pod" {
				return true
			}
		}
	}
	return false
}
