//go:build neighbours

package neighbours

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// networkPolicies returns rules at the hook of kube-network-policies, which decide as a policy for the endpoints would.
func networkPolicies() neighbour {
	load := func(n *node) {
		var endpoints, from [2]string
		for i := range inet.Families {
			endpoints[i] = fmt.Sprintf("%s, %s, %s", n.Pods[0].Addrs()[i], n.Pods[1].Addrs()[i], n.Remotes[0].Addrs()[i])
			from[i] = fmt.Sprintf("%s, %s", n.banned().Addrs()[i], n.container().Addrs()[i])
		}
		n.sh("nft -f - <<'E'\n%s\nE", fmt.Sprintf(`table inet kube-network-policies
delete table inet kube-network-policies
table inet kube-network-policies {
 set podips-v4 { type ipv4_addr; elements = { %s } }
 set podips-v6 { type ipv6_addr; elements = { %s } }
 chain postrouting {
  type filter hook postrouting priority srcnat - 5;
  meta l4proto icmpv6 accept
  meta skuid 0 accept
  ct state established,related accept
  ip daddr @podips-v4 ip saddr { %s } drop
  ip6 daddr @podips-v6 ip6 saddr { %s } drop
 }
}`, endpoints[0], endpoints[1], from[0], from[1]))
	}
	return neighbour{
		name: "rules at the hook of kube-network-policies", version: "nft --version | sed 's/^nftables v//; s/ .*//'",
		policy: "a denied client reaches the endpoints neither directly, nor by load-balancer IPs, nor by node ports; a denied pod does not reach them by cluster IPs. " +
			"The program itself was not run: it needs `nft_queue`, which the kernel of the test lacks",
		install: func(n *node, _ bool) { load(n) },
		reload:  load,
		remove:  func(n *node) { n.sh("nft delete table inet kube-network-policies") },
		denied: func(n *node) []check {
			list := append(direct(n.banned(), n.Pods[0], backendPort, "-", "denied client to pod"), toLB(n.banned(), "-", "denied client to load-balancer IP")...)
			list = append(list, direct(n.banned(), n.Node, nodePort, "-", "denied client to node port")...)
			for _, to := range clusterIPs {
				list = append(list, check{name: "denied pod to cluster IP", from: n.container(), proto: inet.TCP, to: netip.AddrPortFrom(to, 80), server: "-"})
			}
			return list
		},
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}

// kubeRouter returns kube-router as an engine of NetworkPolicies only: one denies a client, one denies all packets of the container.
func kubeRouter() neighbour {
	start := func(n *node) {
		// Each sync renames the chains of the policies.
		const chains = "iptables-save | grep ':KUBE-NWPLCY-[^D]'"
		before, _ := n.try(chains)
		n.daemon("kube-router --kubeconfig=/etc/kubeconfig --hostname-override="+world.NodeName+" --run-router=false --run-service-proxy=false --enable-cni=false "+
			"--service-cluster-ip-range=10.96.0.0/16", answersAt("http://127.0.0.1:20244/healthz"))
		n.eventually("the first sync", func() error {
			after, err := n.try(chains)
			if err == nil && after == before {
				err = fmt.Errorf("the chains are the old ones: %s", after)
			}
			return err
		})
	}
	return neighbour{
		name: "kube-router (NetworkPolicy, iptables)", version: "kube-router --version 2>&1 | sed -n 's/.*version v\\([0-9.]*\\).*/\\1/p'",
		policy: "a denied client reaches the pod neither directly, nor by load-balancer IPs, nor by node ports, " +
			"also with [direct server return](dsr.md); a pod without egress reaches no Service. " +
			"kube-router was run on a real API server, without its router and its service proxy, and for IPv4. With IPv6, its rules for this policy refer to an ipset that does not exist, and do not load",
		prepare: func(n *node) {
			n.createPolicies(n.serveAPI())
			n.offerDirect(n.Pods[0].Addrs(), world.NodeName)
		},
		install: func(n *node, _ bool) { start(n) },
		reload:  func(n *node) { n.end("kube-router"); start(n) },
		remove: func(n *node) {
			n.end("kube-router")
			n.sh("iptables -F; iptables -X; ipset destroy")
		},
		denied: func(n *node) []check {
			denied := func(name string, from *lab.Host, to netip.Addr, port uint16) check {
				return check{name: name, from: from, proto: inet.TCP, to: netip.AddrPortFrom(to, port), server: "-"}
			}
			return []check{
				denied("denied client to pod", n.banned(), n.Pods[0].IPv4, backendPort),
				denied("denied client to load-balancer IP with policy Local", n.banned(), localIPs[0], 80),
				denied("denied client to node port with policy Local", n.banned(), n.Node.IPv4, localPort),
				denied("denied client to load-balancer IP with direct server return", n.banned(), passedLBIPs[0], 80),
				denied("denied client to node port with direct server return", n.banned(), n.Node.IPv4, passedPort),
				denied("pod without egress to cluster IP", n.container(), clusterIPs[0], 80),
			}
		},
		allowed: func(n *node) []check { return direct(n.Client, n.Pods[0], backendPort, "pod-0", "client to pod") },
		services: func(n *node) []check {
			own, client := n.Node.Addrs(), n.Client.Addrs()
			list := both("load-balancer IP with direct server return", n.Client, passedLBIPs, 80, "pod-0", client)
			return append(list, both("node port with direct server return", n.Client, own[:], passedPort, "pod-0", client)...)
		},
		leaves: true, lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}

// createPolicies creates the pods and their NetworkPolicies.
func (n *node) createPolicies(c *cluster.Cluster) {
	n.t.Helper()
	ctx, core := n.t.Context(), c.Client().CoreV1()
	_, err := core.ServiceAccounts(metav1.NamespaceDefault).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}, metav1.CreateOptions{})
	lab.Must(n.t, err)
	for _, pod := range n.Pods {
		p, err := core.Pods(metav1.NamespaceDefault).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: map[string]string{"pod": pod.Name}},
			Spec:       corev1.PodSpec{NodeName: world.NodeName, ServiceAccountName: "pods", AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		}, metav1.CreateOptions{})
		lab.Must(n.t, err)
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: pod.IPv4.String(), HostIP: n.Node.IPv4.String()}
		for i, addr := range pod.Addrs() {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: addr.String()})
			p.Status.HostIPs = append(p.Status.HostIPs, corev1.HostIP{IP: n.Node.Addrs()[i].String()})
		}
		_, err = core.Pods(metav1.NamespaceDefault).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		lab.Must(n.t, err)
	}
	ingress, egress := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "denied-client"}}, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-egress"}}
	ingress.Spec.PodSelector.MatchLabels = map[string]string{"pod": n.Pods[0].Name}
	egress.Spec.PodSelector.MatchLabels = map[string]string{"pod": n.container().Name}
	ingress.Spec.PolicyTypes, egress.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	others := &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{n.banned().IPv4.String() + "/32"}}
	ingress.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: others}}}}
	for _, policy := range []*networkingv1.NetworkPolicy{ingress, egress} {
		_, err := c.Client().NetworkingV1().NetworkPolicies(metav1.NamespaceDefault).Create(ctx, policy, metav1.CreateOptions{})
		lab.Must(n.t, err)
	}
}
