//go:build neighbours

package neighbours

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// serveAPI starts an API server with the objects of the Services, and returns its client. The node has its kubeconfig in /etc/kubeconfig.
func (n *node) serveAPI() *cluster.Cluster {
	n.t.Helper()
	c, err := cluster.Start(n.t.Context(), cluster.Config{Dir: filepath.Join(n.dir, "cluster"), Netns: n.Node.Netns})
	lab.Must(n.t, err)
	n.t.Cleanup(c.Stop)
	file := filepath.Join(n.dir, "kubeconfig")
	lab.Must(n.t, c.Kubeconfig(file, true))
	text, err := os.ReadFile(file)
	lab.Must(n.t, err)
	n.sh("cat >/etc/kubeconfig <<'E'\n%s\nE", text)
	lab.Must(n.t, c.Apply(n.t.Context(), n.objects...))
	return c
}

// post creates an object from YAML, in a path of the API.
func post(ctx context.Context, c *cluster.Cluster, path string, text []byte) error {
	return c.Client().CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/yaml").SetHeader("Accept", "application/json").
		Body(text).Do(ctx).Error()
}

// resolution returns a check of the hardware address that a host finds for each address: that of the node, or none.
func resolution(what string, from *lab.Host, to []netip.Addr, answered bool) (list []check) {
	for _, addr := range to {
		c := check{name: what, from: from, proto: inet.TCP, to: netip.AddrPortFrom(addr, 80)}
		c.act = func(ctx context.Context) error {
			if out, err := from.Command(ctx, "ip", "neigh", "flush", "to", addr.String()).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			from.Probe(ctx, c.proto, c.to, lab.Options{}) // its answer depends on kube-nftproxy
			out, err := from.Command(ctx, "ip", "neigh", "show", "to", addr.String()).CombinedOutput()
			if err == nil && strings.Contains(string(out), "lladdr") != answered {
				err = fmt.Errorf("neighbour: %q, want an answer: %t", out, answered)
			}
			return err
		}
		list = append(list, c)
	}
	return list
}

// metalLB returns MetalLB's speaker, which answers for load-balancer IPs at the interface of one client.
func metalLB() neighbour {
	const namespace = "metallb-system"
	near := func(n *node) *lab.Host { return n.Clients[1] }
	announced := []netip.Addr{lbIPs[0], lbIPs[1], localIPs[0], localIPs[1]}
	found := func(n *node) []check {
		return resolution("neighbour of the client, by ARP and neighbour discovery", near(n), announced, true)
	}
	services := func(n *node) []check {
		list := both("load-balancer IP, on the network of the client", near(n), lbIPs, 80, "*", [2]netip.Addr{})
		return append(list, both("load-balancer IP with policy Local, on the network of the client", near(n), localIPs, 80, "pod-0", near(n).Addrs())...)
	}
	start := func(n *node) {
		n.daemon("speaker --kubeconfig=/etc/kubeconfig --namespace="+namespace+" --node-name=node-1 --pod-name=speaker --host=127.0.0.1",
			answersAt("http://127.0.0.1:7472/metrics"))
		for _, c := range found(n) {
			n.eventually(c.name, func() error { return c.act(n.t.Context()) })
		}
	}
	return neighbour{
		name: "MetalLB (speaker, mode L2)", version: `speaker 2>&1 | sed -n 's/.*"version":"\([^"]*\)".*/\1/p'`,
		policy: "a client on the network of the load-balancer IPs finds the node as their neighbour, by ARP and neighbour discovery, and reaches the Services; " +
			"a client at an interface that the L2Advertisement does not name finds none. One speaker was run, on a real API server, without memberlist and without MetalLB's controller",
		prepare: func(n *node) {
			for _, h := range n.Clients[1:] {
				h.Run(n.t, "sh", "-c", "ip route add 203.0.113.0/24 dev eth0; ip -6 route add 2001:db8:1::/64 dev eth0")
				// The speaker answers neighbour solicitations only at interfaces with a link-local address.
				n.sh("ip -6 addr add fe80::1/64 dev %s nodad", h.Device)
			}
			c := n.serveAPI()
			ctx := n.t.Context()
			crds, err := filepath.Glob(filepath.Join(bin(n.t), "metallb", "*.yaml"))
			if err != nil || len(crds) == 0 {
				n.t.Fatalf("CRDs of MetalLB: %v, %v", crds, err)
			}
			for _, name := range crds {
				text, err := os.ReadFile(name)
				if err == nil {
					err = post(ctx, c, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", text)
				}
				if err != nil {
					n.t.Fatalf("%s: %v", name, err)
				}
			}
			meta := metav1.ObjectMeta{Namespace: namespace, Name: "speaker"}
			lab.Must(n.t, c.Apply(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
			_, err = c.Client().CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
			lab.Must(n.t, err)
			_, err = c.Client().CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
				NodeName: "node-1", ServiceAccountName: "speaker", AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "speaker", Image: "speaker"}},
			}}, metav1.CreateOptions{})
			lab.Must(n.t, err)
			for kind, text := range map[string]string{
				"ipaddresspools":   "kind: IPAddressPool\nmetadata: {name: pool, namespace: metallb-system}\nspec: {addresses: [203.0.113.0/24, '2001:db8:1::/64']}\n",
				"l2advertisements": "kind: L2Advertisement\nmetadata: {name: near, namespace: metallb-system}\nspec: {ipAddressPools: [pool], interfaces: [" + near(n).Device + "]}\n",
			} {
				// The API server serves a new kind after a moment.
				n.eventually("create "+kind, func() error {
					return post(ctx, c, "/apis/metallb.io/v1beta1/namespaces/metallb-system/"+kind, []byte("apiVersion: metallb.io/v1beta1\n"+text))
				})
			}
		},
		install: func(n *node, _ bool) { start(n) },
		reload:  func(n *node) { n.end("speaker"); start(n) },
		remove:  func(n *node) { n.end("speaker") },
		allowed: found,
		denied: func(n *node) []check {
			list := resolution("neighbour of a client at another interface", n.Clients[2], announced, false)
			return append(list, resolution("neighbour for an address without a Service", near(n), []netip.Addr{netip.MustParseAddr("203.0.113.99"), netip.MustParseAddr("2001:db8:1::99")}, false)...)
		},
		services: services, through: func(n *node) []check { return overTCP(services(n)) },
		without: func(n *node) []check {
			return resolution("neighbour without the speaker", near(n), announced, false)
		},
		lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}
