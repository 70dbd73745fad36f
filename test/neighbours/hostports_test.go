//go:build neighbours

package neighbours

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// hostPorts is a pod with a host port that kube-nftproxy serves. The plugin bridge connects it, with further plugins.
func hostPorts(name, further string) neighbour {
	plug := func(n *node, verb string) string {
		return n.sh(`CAP_ARGS='{"portMappings": [{"hostPort": %d, "containerPort": %d, "protocol": "tcp"}]}' \
CNI_PATH=/opt/programs NETCONFPATH=/etc/cni/net.d /opt/programs/cnitool %s net /run/netns/%s`,
			published, backendPort, verb, n.container().Netns)
	}
	return neighbour{
		name: name, version: "/opt/programs/bridge 2>&1 | sed -n 's/.*plugin v*//p' | head -1",
		prepare: func(n *node) {
			n.args = []string{"--host-ports"}
			n.unplug(n.container())
			n.sh("mkdir -p /etc/cni/net.d; cat >/etc/cni/net.d/10-net.conflist <<'E'\n%s\nE",
				`{"cniVersion": "1.0.0", "name": "net", "plugins": [
{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
"ipam": {"type": "host-local", "subnet": "10.244.7.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}`+further+`]}`)
		},
		install: func(n *node, _ bool) {
			var result struct {
				IPs []struct{ Address netip.Prefix }
			}
			lab.Must(n.t, json.Unmarshal([]byte(plug(n, "add")), &result))
			n.writePod(result.IPs[0].Address.Addr())
		},
		remove: func(n *node) {
			lab.Must(n.t, os.Remove(filepath.Join(n.manifests(), "pod.json")))
			plug(n, "del")
		},
		through: hostPort, leaves: true, lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}

// writePod writes the pod of the container with the host port.
func (n *node) writePod(addr netip.Addr) {
	n.t.Helper()
	port := corev1.ContainerPort{HostPort: published, ContainerPort: backendPort, Protocol: corev1.ProtocolTCP}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "ingress"},
		Spec: corev1.PodSpec{NodeName: world.NodeName, Containers: []corev1.Container{{
			Name: "proxy", Ports: []corev1.ContainerPort{port},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr.String()}}},
	}
	lab.Must(n.t, world.Write(n.manifests(), "pod", pod))
}

// hostPort is the check of the host port.
func hostPort(n *node) []check {
	return []check{{
		name: "host port", from: n.Client, proto: inet.TCP, to: netip.AddrPortFrom(n.Node.IPv4, published),
		server: "pod-3", source: n.Client.IPv4,
	}}
}

// besidePortmap is the plugin portmap while kube-nftproxy serves host ports, too. A reload is that of a firewall which
// deletes the rules of portmap.
func besidePortmap(backend string) neighbour {
	save, flush, restore := "iptables-save -t nat", "iptables -t nat -F", "iptables-restore"
	if backend == "nftables" {
		save, flush, restore = "nft list table ip cni_hostport", "nft delete table ip cni_hostport", "nft -f -"
	}
	nb := hostPorts("CNI plugin portmap, beside `--host-ports` ("+backend+")",
		fmt.Sprintf(`, {"type": "portmap", "backend": %q, "capabilities": {"portMappings": true}}`, backend))
	nb.policy = "a host port leads to its pod, also while the rules of portmap are deleted, and by portmap after the " +
		"removal of kube-nftproxy"
	nb.allowed = hostPort
	nb.reload = func(n *node) {
		// Until kube-nftproxy has read the manifest of the pod, only portmap serves the port.
		n.sh("timeout %d sh -c 'until nft list map ip kube-nftproxy nodeports | grep -q \"tcp . %d\"; do sleep 0.01; done'",
			lab.Patience/time.Second, published)
		n.sh("%s >/run/rules; %s", save, flush)
		for range 20 {
			n.must("without the rules of portmap", hostPort(n))
		}
		n.sh("%s </run/rules", restore)
	}
	return nb
}

// insteadOfPortmap has no plugin that serves host ports.
func insteadOfPortmap() neighbour {
	nb := hostPorts("CNI plugin bridge without portmap, with `--host-ports`", "")
	nb.policy = "a host port leads to its pod"
	nb.services = hostPort
	return nb
}
