//go:build e2e || twin

package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// page holds a page's code blocks of one language, by heading.
type page map[string][]string

const migrating = "docs/migrating.md"

// mustReadPage reads a file's code blocks of one language.
func mustReadPage(t *testing.T, file, language string) page {
	t.Helper()
	text := mustRead(t, filepath.Join("../..", file))
	p := page{}
	heading, open, body := "", "", ""
	for line := range strings.Lines(text) {
		switch fence, isFence := strings.CutPrefix(line, "```"); {
		case isFence && open == "":
			open, body = strings.TrimSpace(fence), ""
		case isFence:
			if open == language {
				p[heading] = append(p[heading], body)
			}
			open = ""
		case open != "":
			body += line
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	return p
}

// stage is a part of the page, with the program that serves after it.
type stage struct {
	heading string
	// blocks are the numbers of the blocks to run; none stands for all.
	blocks []int
	// by is the label k8s-app of the serving pod; ours is true if its program is kube-nftproxy.
	by   string
	ours bool
	// check checks the special results of the stage.
	check func(*migration)
}

// stages is the sequence through the page: all blocks run at least once.
var stages = []stage{
	{heading: "Before you start", by: "kube-proxy"},
	{heading: "kubeadm: swap the image", by: "kube-proxy", ours: true},
	{heading: "Check a node", by: "kube-proxy", ours: true},
	{heading: "kubeadm: go back", by: "kube-proxy"},
	{heading: "Rules and connections after a switch", blocks: []int{0}, by: "kube-proxy"},
	{heading: "kubeadm: one node first", by: "kube-proxy", ours: true},
	{heading: "kubeadm: fewer privileges", blocks: []int{0}, by: "kube-proxy", ours: true, check: (*migration).isHardened},
	{heading: "kubeadm: fewer privileges", blocks: []int{1}, by: "kube-proxy", ours: true},
	{heading: "kubeadm: go back", by: "kube-proxy"},
	{heading: "Separate DaemonSet", by: "kube-proxy"},
	{heading: "Separate DaemonSet: node by node", blocks: []int{0}, by: "kube-nftproxy", ours: true},
	{heading: "Separate DaemonSet: go back", by: "kube-proxy"},
	{heading: "Separate DaemonSet: node by node", by: "kube-nftproxy", ours: true},
	{heading: "Separate DaemonSet: complete the migration", by: "kube-nftproxy", ours: true},
	{heading: "Separate DaemonSet: go back", by: "kube-proxy"},
	{heading: "Separate DaemonSet: complete the migration", blocks: []int{0}, by: "kube-nftproxy", ours: true},
	{heading: "Check a node", by: "kube-nftproxy", ours: true},
}

// migration is an operator who follows the page.
type migration struct {
	*site
	page page
	// connection was opened at the start.
	connection conversation
	// onPod1 is true while Service web leads to pod-1, otherwise it leads to pod-0.
	onPod1 bool
}

// kubeProxyImage is the image in kubeadm's DaemonSet.
const kubeProxyImage = "registry.k8s.io/kube-proxy"

// kubeadmConfig is a cluster whose kube-proxy can run in a lab, in which conntrack's limit is read-only.
const kubeadmConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %s}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
controlPlaneEndpoint: %s
networking: {podSubnet: "10.244.0.0/16,fd00:10:244::/56"}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
conntrack: {maxPerCore: 0}
`

// testMigrating runs the commands of the page. After each stage the right program serves and follows a change, and a connection
// from before the first stage still works.
func testMigrating(t *testing.T, kubeProxy kubelet.Image) {
	p := mustReadPage(t, migrating, "sh")
	covered := map[string]bool{}
	for _, s := range stages {
		covered[s.heading] = true
	}
	if len(p) < 8 {
		t.Fatalf("only %d headings with commands: %q", len(p), slices.Sorted(maps.Keys(p)))
	}
	for heading := range p {
		if !covered[heading] {
			t.Errorf("no stage runs the commands below %q", heading)
		}
	}
	m := &migration{page: p, site: newSite(t, lab.Config{Pods: 3}, map[string]kubelet.Image{kubeProxyImage: kubeProxy}, allowPrivileged)}
	m.begin()
	for i, s := range stages {
		if !t.Run(fmt.Sprintf("%d %s", i, s.heading), func(t *testing.T) { m.T = t; m.do(s) }) {
			break
		}
	}
	m.T = t
	if !t.Failed() {
		m.leave()
	}
}

// begin applies kubeadm's objects, and opens a connection through kube-proxy.
func (m *migration) begin() {
	m.Helper()
	m.serve(m.Pods[0], m.Pods[1])
	serveEcho(m, 7777, m.Pods[0])
	svc := balanced()
	m.apply(svc)
	m.applySlices("a", endpointsOf(m.Pods[0]))
	echo := service("echo")
	echo.Spec.Ports = echo.Spec.Ports[:1]
	m.apply(echo)
	s := slice("echo", "echo-1", endpoint(m.Pods[0].IPv4))
	port := int32(7777)
	s.Ports = s.Ports[:1]
	s.Ports[0].Port = &port
	m.apply(s)
	file := filepath.Join(m.checkout, "kubeadm.yaml")
	must(m, os.WriteFile(file, fmt.Appendf(nil, kubeadmConfig, m.Node.IPv4, m.api.Server()), 0o600))
	m.kubeadm("--config kubeadm.yaml")
	m.served("kube-proxy", false)
	to := m.clusterIPs("echo")[0]
	eventually(m, patience, func() (err error) {
		m.connection, err = dialEcho(m.Context(), m.Client, to)
		return err
	})
	m.Cleanup(func() { m.connection.Close() })
}

// do runs the commands of a stage, and checks the result.
func (m *migration) do(s stage) {
	blocks := m.page[s.heading]
	if s.blocks != nil {
		var some []string
		for _, n := range s.blocks {
			some = append(some, blocks[n])
		}
		blocks = some
	}
	for _, script := range blocks {
		script = strings.NewReplacer("192.0.2.10:6443", m.api.Server().String(), "--timeout=5m", "--timeout=60s").Replace(script)
		m.Logf("%s%s", script, m.sh(script))
	}
	m.served(s.by, s.ours)
	if s.check != nil {
		s.check(m)
	}
	m.moves()
	m.alive()
}

// served waits until the pod with this label is the only one, and its program serves.
func (m *migration) served(by string, ours bool) {
	m.Helper()
	other := map[string]string{"kube-proxy": "kube-nftproxy", "kube-nftproxy": "kube-proxy"}[by]
	eventually(m, patience, func() error { return m.gone("k8s-app=" + other) })
	eventually(m, patience, func() error {
		p, d := m.pod(by)
		if isOurs := !strings.HasPrefix(p.Spec.Containers[0].Image, kubeProxyImage); isOurs != ours {
			return fmt.Errorf("pod %s has image %s", p.Name, p.Spec.Containers[0].Image)
		}
		status, body, err := d.get("http://127.0.0.1:10256/livez")
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d: %s", status, body)
		}
		return err
	})
}

// gone returns nil if no pod has a label.
func (m *migration) gone(label string) error {
	list, err := m.api.Client().CoreV1().Pods("kube-system").List(m.Context(), metav1.ListOptions{LabelSelector: label})
	if err == nil && len(list.Items) > 0 {
		err = fmt.Errorf("%d pods with %s", len(list.Items), label)
	}
	return err
}

// moves replaces the endpoint of Service web: the serving program has to follow.
func (m *migration) moves() {
	m.Helper()
	m.onPod1 = !m.onPod1
	to := m.Pods[0]
	if m.onPod1 {
		to = m.Pods[1]
	}
	m.applySlices("a", endpointsOf(to))
	ips := m.clusterIPs("web")
	for addr, from := range map[netip.AddrPort]*lab.Host{
		ips[0]: m.Client, ips[1]: m.Pods[2], netip.AddrPortFrom(m.Node.IPv4, 30080): m.Client,
	} {
		eventually(m, patience, func() error { return reached(m.Context(), from, inet.TCP, addr, to.Name) })
	}
}

// alive checks the connection from the start.
func (m *migration) alive() {
	m.Helper()
	if err := m.connection.goOn(); err != nil {
		m.Fatalf("the connection from the start is lost: %v", err)
	}
}

func (m *migration) isHardened() {
	p, _ := m.pod("kube-proxy")
	if c := p.Spec.Containers[0].SecurityContext; c.Privileged == nil || *c.Privileged || len(p.Spec.InitContainers) != 1 {
		m.Errorf("the pod isn't hardened: %+v, %d containers before it", c, len(p.Spec.InitContainers))
	}
}

// leave deletes the DaemonSet, and then its leftovers on the node.
func (m *migration) leave() {
	m.Helper()
	m.sh("kubectl delete -k deploy/base")
	eventually(m, patience, func() error { return m.gone("k8s-app=kube-nftproxy") })
	if out := nft(m, m.Node, "list", "tables"); !strings.Contains(out, "kube-nftproxy") {
		m.Errorf("the rules should stay when the program ends; tables: %s", out)
	}
	blocks := m.page["Rules and connections after a switch"]
	m.Log(m.sh(blocks[len(blocks)-1]))
	eventually(m, patience, func() error {
		if out := nft(m, m.Node, "list", "tables"); strings.Contains(out, "kube-") {
			return fmt.Errorf("tables left: %s", out)
		}
		return nil
	})
}
