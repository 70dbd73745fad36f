package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestHostPorts: each host port is a service port with one frontend, in each family of the pod and of its hostIP.
func TestHostPorts(t *testing.T) {
	both, four := []string{"10.244.0.10", "fd00:10:244::10"}, []string{"10.244.0.10"}
	port := func(hostPort int32, protocol corev1.Protocol, hostIP string) corev1.ContainerPort {
		return corev1.ContainerPort{ContainerPort: 8080, HostPort: hostPort, Protocol: protocol, HostIP: hostIP}
	}
	for _, tc := range []struct {
		name     string
		ips      []string
		ports    []corev1.ContainerPort
		want     []string
		problems string
	}{
		{"both families", both, []corev1.ContainerPort{port(80, "TCP", ""), port(53, "UDP", "")}, []string{
			"80 *:80/tcp -> 10.244.0.10:8080", "53 *:53/udp -> 10.244.0.10:8080",
			"80 *:80/tcp -> [fd00:10:244::10]:8080", "53 *:53/udp -> [fd00:10:244::10]:8080",
		}, ""},
		{"one family", four, []corev1.ContainerPort{port(80, "", "")}, []string{"80 *:80/tcp -> 10.244.0.10:8080"}, ""},
		{"hostIP", both, []corev1.ContainerPort{port(80, "TCP", "192.0.2.1"), port(80, "TCP", "2001:db8::1")}, []string{
			"192.0.2.1:80 192.0.2.1:80/tcp -> 10.244.0.10:8080",
			"[2001:db8::1]:80 [2001:db8::1]:80/tcp -> [fd00:10:244::10]:8080",
		}, ""},
		{"a family that the pod lacks", four, []corev1.ContainerPort{port(80, "TCP", "2001:db8::1")}, nil, ""},
		{"all addresses of a family", both, []corev1.ContainerPort{port(80, "TCP", "0.0.0.0"), port(81, "TCP", "::")},
			[]string{"0.0.0.0:80 *:80/tcp -> 10.244.0.10:8080", "[::]:81 *:81/tcp -> [fd00:10:244::10]:8080"}, ""},
		{"other addresses", both, []corev1.ContainerPort{port(80, "TCP", "8.8.8.8"), port(81, "TCP", "x")}, nil,
			`"8.8.8.8": the hostIP is not the primary IPv4 address of this node, "x": not an IP address`},
		{"invalid", four, []corev1.ContainerPort{port(80, "ICMP", ""), port(-1, "TCP", ""), port(90, "TCP", ""),
			{ContainerPort: 9090, HostPort: 90, Protocol: "TCP"}}, []string{"90 *:90/tcp -> 10.244.0.10:8080"}, `"ICMP": not TCP, UDP or SCTP, ` +
			`hostPort -1 is not a port, or used twice for tcp, hostPort 90 is not a port, or used twice for tcp`},
		{"no usable address", []string{"127.0.0.1"}, []corev1.ContainerPort{port(80, "TCP", "")}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ingress"},
				Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Ports: tc.ports}}},
			}
			for _, ip := range tc.ips {
				pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			ips := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
			node := Node{Name: "node-1", IPs: ips}
			var got, problems []string
			x := Explain(ObjectsOfPod(pod), node, Options{UnusedPorts: UnusedPorts{All: true}, Terminate: TerminateGone})
			if x == nil {
				x = &Explanation{Service: &Service{}}
			}
			for i, sp := range x.Service.Ports {
				f := &sp.Frontends[0]
				at := f.Address()
				if !f.Addr.IsValid() {
					at = fmt.Sprintf("*:%d", f.Port)
				}
				got = append(got, fmt.Sprintf("%s %s/%s -> %s", sp.Name.Port, at, sp.Protocol, sp.Cluster[0]))
				if len(sp.Cluster) != 1 || len(sp.Hairpin) != 1 || !sp.HasEndpoints || f.Kind != HostPort || x.Ports[i].Candidates[0].NotCluster != "" {
					t.Errorf("%+v, want a host port with the pod as an endpoint on this node", sp)
				}
			}
			for _, p := range x.Problems {
				lab.Same(t, "Pod shop/ingress", p.Kind+" "+p.Name.String(), "the object with the problem")
				problems = append(problems, p.Reason)
			}
			lab.Same(t, tc.want, got, "frontends and endpoints")
			lab.Same(t, tc.problems, strings.Join(problems, ", "), "problems")
			lab.Same(t, [2]int{}, x.LocalReady, "endpoints for health checks")
		})
	}
}

// TestHostPortsLimit: host ports above the limit of a pod are reported once.
func TestHostPortsLimit(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ingress"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{}}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.0.10"}}},
	}
	for i := range int32(MostHostPorts + 10) {
		ports := &pod.Spec.Containers[0].Ports
		*ports = append(*ports, corev1.ContainerPort{ContainerPort: 80, HostPort: 1 + i})
	}
	s := Build(ObjectsOfPod(pod), Node{}, Options{})
	if len(s.Ports) != MostHostPorts || len(s.Problems) != 1 || s.Problems[0].Limit != limitHostPorts {
		t.Errorf("%d host ports, problems %+v, want the limit and one problem", len(s.Ports), s.Problems)
	}
	pod.Status.Phase = corev1.PodFailed
	lab.Same(t, 0, len(HostPorts(pod)), "host ports of a failed pod")
}
