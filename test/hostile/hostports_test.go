package hostile

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// nodeIP is the primary address of the node.
const nodeIP = "192.0.2.1"

// pod returns a running pod of evil on the node, with the address of pod-2. Each host port leads to backendPort.
func (n *node) pod(name string, created metav1.Time, hostIP string, hostPorts ...int32) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	p.Namespace, p.Name, p.CreationTimestamp = "evil", name, created
	p.Spec.NodeName = "node-1"
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: n.Pods[2].IPv4.String()}}}
	c := corev1.Container{Name: "c"}
	for _, port := range hostPorts {
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: backendPort, HostPort: port, HostIP: hostIP})
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

// keeps compares the results of connections before and after an attack, after a restart, and after a reboot.
func (n *node) keeps(want map[string]string, attack func()) {
	n.Helper()
	check := func(when string) {
		n.Helper()
		for _, to := range slices.Sorted(maps.Keys(want)) {
			if got := n.ask(n.Client, to, surely); got != want[to] {
				n.Errorf("%s, %s: %s, want %s", when, to, got, want[to])
			}
		}
	}
	check("without evil")
	attack()
	check("with evil")
	n.restart()
	check("after a restart")
	n.reboot()
	check("after a reboot")
}

// TestHostPortsTakeNothing: younger pods of evil have host ports with the numbers of node ports and of an external IP
// at the node's address, with and without a hostIP. Packets to bank's ports reach bank. A free port leads to the pod,
// and so does the host port of a pod that is older than bank's Service.
func TestHostPortsTakeNothing(t *testing.T) {
	n := newNode(t, 1, "--host-ports")
	s := service("bank/pay", "10.96.0.10")
	s.CreationTimestamp, s.Spec.Ports, s.Spec.Type = meanwhile, ports(80, 3), corev1.ServiceTypeNodePort
	s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30_500, 30_501
	s.Spec.Ports[2].NodePort = 30_502
	s.Spec.Ports[2].Port, s.Spec.ExternalIPs = 9_000, []string{nodeIP}
	n.synced("bank", s, slice("bank/pay", 0, portNames(s.Spec.Ports), backendPort, n.Pods[0].IPv4))
	n.keeps(map[string]string{
		nodeIP + ":30500": "pod-0", nodeIP + ":30501": "pod-0", nodeIP + ":9000": "pod-0", "10.96.0.10:80": "pod-0",
	}, func() {
		n.synced("evil", n.pod("at-ip", later, nodeIP, 30_500, 9_000, 9_001), n.pod("at-all", later, "", 30_501),
			n.pod("older", earlier, nodeIP, 30_502))
	})
	for _, to := range []string{nodeIP + ":9001", nodeIP + ":30502"} {
		lab.Same(t, "pod-2", n.ask(n.Client, to, surely), "%s: n.ask(n.Client, to, surely)", to)
	}
	n.drop("bank")
	n.settle()
	lab.Same(t, "pod-2", n.ask(n.Client, nodeIP+":30500", surely), "after the deletion of bank's Service")
	n.synced("bank", s, slice("bank/pay", 0, portNames(s.Spec.Ports), backendPort, n.Pods[0].IPv4))
	lab.Same(t, "pod-0", n.ask(n.Client, nodeIP+":30500", surely), "after bank's Service is back")
}
