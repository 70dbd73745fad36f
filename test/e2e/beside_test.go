//go:build e2e || twin

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// proxyName is the name of the instance under test, labelProxyName the label of its Services.
const (
	proxyName      = "try"
	labelProxyName = "service.kubernetes.io/service-proxy-name"
)

// neighbours are two programs on one node, each with a Service that has every kind of frontend.
type neighbours struct {
	asked
	// mine is served by the instance with a name, theirs by the other program.
	mine, theirs frontends
	named        *daemon
	// whole is the world of the whole test, in whose parts the instance runs.
	whole *world
}

// frontends are the frontends of a Service, with one of its cluster IPs in each family first.
type frontends []netip.AddrPort

// testBeside runs the instance with a name beside another program that runs already. The first pod has servers.
func testBeside(t *testing.T, other asked) {
	n := &neighbours{asked: other, whole: other.world}
	n.mine, n.theirs = n.create("mine", 1, proxyName), n.create("theirs", 2, "")
	n.all(n.theirs, "pod-0")
	n.refuseOrDrop(n.mine)
	n.start()
	n.all(n.mine, "pod-0")
	n.all(n.theirs, "pod-0")
	for _, part := range []struct {
		name string
		test func(*neighbours)
	}{
		{"no endpoints", (*neighbours).testNoEndpoints},
		{"claims", (*neighbours).testClaims},
		{"unused ports and addresses", (*neighbours).testUnused},
		{"masquerading", (*neighbours).testMasquerading},
		{"tables", (*neighbours).testTables},
		{"commands", (*neighbours).testCommands},
		{"labels", (*neighbours).testLabels},
		{"removal", (*neighbours).testRemoval},
	} {
		t.Run(part.name, func(t *testing.T) {
			n.asked = other.in(t)
			part.test(n)
		})
	}
}

// create creates a Service with every kind of frontend, and its endpoints. i makes its node port and addresses unique.
func (n *neighbours) create(name string, i int, proxyName string) (list frontends) {
	svc := balanced()
	svc.Name = name
	svc.Labels = proxyLabels(proxyName)
	port := 30080 + int32(i)
	svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = port, port
	addr := func(form string) string { return fmt.Sprintf(form, i) }
	svc.Spec.ExternalIPs = []string{addr("203.0.113.1%d"), addr("2001:db8:203::1%d")}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr("203.0.113.2%d")}, {IP: addr("2001:db8:203::2%d")}}
	n.apply(svc)
	n.fill(name, n.Pods[0])
	list = n.clusterIPs(name)
	for _, text := range append(svc.Spec.ExternalIPs, addr("203.0.113.2%d"), addr("2001:db8:203::2%d")) {
		list = append(list, addrPort(text))
	}
	for _, node := range n.Node.Addrs() {
		list = append(list, netip.AddrPortFrom(node, uint16(port)))
	}
	return list
}

func proxyLabels(proxyName string) map[string]string {
	if proxyName == "" {
		return nil
	}
	return map[string]string{labelProxyName: proxyName}
}

// fill gives a Service endpoints on a host, without labels of the Service, or none for nil.
func (n *neighbours) fill(service string, h *lab.Host) {
	for f, family := range inet.Families {
		var list []discoveryv1.Endpoint
		if h != nil {
			list = append(list, endpointsOf(h)[f])
		}
		s := slice(service, fmt.Sprintf("%s-%d", service, family), list...)
		s.AddressType = [...]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[f]
		n.apply(s)
	}
}

// start starts the instance with a name. Its default flags give it no port of the other program.
func (n *neighbours) start() {
	n.named = n.whole.start("--service-proxy-name="+proxyName, "--metrics-bind-address=127.0.0.1:10349")
}

// all waits until a pod, the node and a client reach a server at each frontend.
func (n *neighbours) all(to frontends, server string) {
	n.Helper()
	for _, addr := range to {
		for _, from := range []*lab.Host{n.Pods[1], n.Node, n.Client} {
			reach(n, from, addr, server)
		}
	}
}

// none waits until connections from a pod, the node and a client end with an outcome.
func (n *neighbours) none(to frontends, want lab.Outcome) {
	n.Helper()
	for _, addr := range to {
		for _, from := range []*lab.Host{n.Pods[1], n.Node, n.Client} {
			n.outcome(from, addr, want)
		}
	}
}

func (n *neighbours) outcome(from *lab.Host, to netip.AddrPort, want lab.Outcome) {
	n.Helper()
	eventually(n, patience, func() error {
		if got := from.Probe(n.Context(), inet.TCP, to, lab.Options{}); got.Outcome != want {
			return fmt.Errorf("%s -> %s: %s, want %s", from.Name, to, got, want)
		}
		return nil
	})
}

// refuseOrDrop: a frontend that no program serves has no answer.
func (n *neighbours) refuseOrDrop(to frontends) {
	n.Helper()
	for _, addr := range to[:2] {
		if err := reached(n.Context(), n.Pods[1], inet.TCP, addr); err != nil {
			n.Error(err)
		}
	}
}

// testNoEndpoints: each program refuses its own Service, although the other one knows nothing of the addresses.
func (n *neighbours) testNoEndpoints() {
	n.fill("mine", nil)
	n.none(n.mine, lab.Refused)
	n.all(n.theirs, "pod-0")
	n.fill("mine", n.Pods[0])
	n.fill("theirs", nil)
	n.none(n.theirs[:2], lab.Refused) // in mode iptables, the node's own packets to an external IP are not refused
	n.all(n.mine, "pod-0")
	n.fill("theirs", n.Pods[0])
	n.all(n.theirs, "pod-0")
}

// testClaims: an author of a Service with the label takes no address of the other program's Services, except those that ipvs serves: the
// kernel evaluates ipvs after all DNAT.
func (n *neighbours) testClaims() {
	var claimed []string
	for _, to := range n.theirs[:6] { // all but those of the node
		claimed = append(claimed, to.Addr().String())
	}
	set := func(ips []string) {
		n.patch("mine", func(s *corev1.Service) { s.Spec.ExternalIPs = ips })
	}
	own := n.patch("mine", func(*corev1.Service) {}).Spec.ExternalIPs
	n.fill("mine", nil)
	set(append(claimed, own...))
	eventually(n, patience, func() error {
		if !strings.Contains(n.list("kube-nftproxy-"+proxyName), n.theirs[2].Addr().String()+" ") {
			return errors.New("the instance has not programmed the claim")
		}
		return nil
	})
	kept := n.theirs
	if n.ipvs {
		n.none(n.theirs[:len(claimed)], lab.Refused)
		kept = n.theirs[len(claimed):]
	}
	for _, addr := range kept {
		for _, from := range []*lab.Host{n.Pods[1], n.Node, n.Client} {
			if err := reached(n.Context(), from, inet.TCP, addr, "pod-0"); err != nil {
				n.Error(err)
			}
		}
	}
	set(own)
	n.fill("mine", n.Pods[0])
	n.all(n.mine, "pod-0")
}

// patch changes a Service.
func (n *neighbours) patch(name string, change func(*corev1.Service)) *corev1.Service {
	n.Helper()
	svc, err := n.api.Client().CoreV1().Services("default").Get(n.Context(), name, metav1.GetOptions{})
	must(n, err)
	change(svc)
	if svc, err = n.api.Client().CoreV1().Services("default").Update(n.Context(), svc, metav1.UpdateOptions{}); err != nil {
		n.Fatal(err)
	}
	return svc
}

// testUnused: the instance refuses unused ports of its own cluster IPs, and leaves all other addresses to the other program.
func (n *neighbours) testUnused() {
	before := map[netip.AddrPort]lab.Outcome{}
	unused := func() (list []netip.AddrPort) {
		for _, addr := range []netip.Addr{n.theirs[0].Addr(), n.theirs[1].Addr(), netip.MustParseAddr("10.96.0.250"), n.Node.IPv4, n.Node.IPv6} {
			list = append(list, netip.AddrPortFrom(addr, 30999))
		}
		return list
	}
	for _, addr := range unused() {
		before[addr] = n.Pods[1].Probe(n.Context(), inet.TCP, addr, lab.Options{}).Outcome
	}
	for _, from := range []*lab.Host{n.Pods[1], n.Node} {
		for _, addr := range n.mine[:2] {
			n.outcome(from, netip.AddrPortFrom(addr.Addr(), 81), lab.Refused)
		}
	}
	n.named.stop()
	n.cleanup()
	for addr, want := range before {
		if got := n.Pods[1].Probe(n.Context(), inet.TCP, addr, lab.Options{}).Outcome; got != want {
			n.Errorf("%s: %s with the instance, %s without", addr, want, got)
		}
	}
	n.start()
	n.all(n.mine[:2], "pod-0")
}

// testMasquerading: both mark packets with the same bit, and each packet is masqueraded once, whichever program does so.
func (n *neighbours) testMasquerading() {
	for _, to := range []frontends{n.mine, n.theirs} {
		for _, addr := range to {
			for from, want := range map[*lab.Host]*lab.Host{n.Pods[1]: n.Pods[1], n.Client: n.Node} {
				if from == n.Pods[1] && addr != to[0] && addr != to[1] {
					continue
				}
				a := from.Probe(n.Context(), inet.TCP, addr, lab.Options{})
				source := a.Source.Addr()
				if n.ipvs && want == n.Node && source == n.theirs[1].Addr() {
					continue // ipvs gives the node its cluster IPs, from which the kernel selects the source of IPv6 packets
				}
				if source != want.Addr(addr.Addr()) {
					n.Errorf("%s -> %s: %s, want the source %s", from.Name, addr, a, want.Name)
				}
			}
		}
	}
}

// packetCount is the part of a rule that packets change.
var packetCount = regexp.MustCompile(`counter packets \d+ bytes \d+`)

// handles lists the chains and rules with the kernel's handles, which change when the table is rewritten.
func (n *neighbours) handles(table string) string {
	if table == "" {
		return "" // of a kube-proxy without tables of its own
	}
	var text strings.Builder
	for line := range strings.Lines(n.list(table)) {
		if strings.Contains(line, "# handle") {
			text.WriteString(packetCount.ReplaceAllString(line, ""))
		}
	}
	return text.String()
}

func (n *neighbours) list(table string) string {
	n.Helper()
	return nft(n, n.Node, "-a", "list", "table", "ip", table) + nft(n, n.Node, "-a", "list", "table", "ip6", table)
}

// testTables deletes the rules of one program: only this one repairs its tables.
func (n *neighbours) testTables() {
	const named = "kube-nftproxy-" + proxyName
	if n.table != "" {
		if text := n.list(n.table); strings.Contains(text, n.mine[0].Addr().String()+" ") || !strings.Contains(text, n.theirs[0].Addr().String()+" ") {
			n.Errorf("the other program's table has the instance's Service, or lacks its own:\n%s", text)
		}
	}
	if text := n.list(named); !strings.Contains(text, n.mine[0].Addr().String()+" ") || strings.Contains(text, n.theirs[0].Addr().String()+" ") {
		n.Errorf("the instance's table lacks its own Service, or has another one:\n%s", text)
	}
	for flushed, other := range map[string]string{named: n.table, n.table: named} {
		if flushed == "" || flushed == "kube-proxy" {
			continue // kube-proxy repairs nothing for some time
		}
		before := n.handles(other)
		nft(n, n.Node, "flush table ip "+flushed+"; flush table ip6 "+flushed)
		n.all(n.mine[:2], "pod-0")
		n.all(n.theirs[:2], "pod-0")
		if after := n.handles(other); after != before {
			n.Errorf("nft flush table %s changed table %q:\n%s", flushed, other, after)
		}
	}
	_, page, err := n.named.get("http://127.0.0.1:10349/metrics")
	if repairs := regexp.MustCompile(`(?m)^kubenftproxy_repairs_total.* [1-9].*$`).FindAllString(string(page), -1); err != nil ||
		len(repairs) != 1 || !strings.HasSuffix(repairs[0], " 1") {
		n.Errorf("%v; the instance repaired %q, want one repair of its own tables", err, repairs)
	}
}

// testCommands traces packets in the tables of either instance.
func (n *neighbours) testCommands() {
	trace := func(to netip.AddrPort, args ...string) string {
		text, _ := n.Node.Command(n.Context(), program, append([]string{"trace", n.Pods[1].IPv4.String(), to.String()}, args...)...).CombinedOutput()
		return string(text)
	}
	named := "--service-proxy-name=" + proxyName
	if text := trace(n.mine[0], named); !strings.Contains(text, "Service port: default/mine:tcp") {
		n.Errorf("trace with the name:\n%s", text)
	}
	if text := trace(n.theirs[0], named); strings.Contains(text, "Service port") {
		n.Errorf("trace with the name finds a Service of the other program:\n%s", text)
	}
	if text := trace(n.theirs[0]); n.table == "kube-nftproxy" && !strings.Contains(text, "Service port: default/theirs:tcp") {
		n.Errorf("trace without the name:\n%s", text)
	}
}

// testLabels hands a Service over, by its label, to the other program, to no program, and back.
func (n *neighbours) testLabels() {
	served := func(want bool) {
		n.Helper()
		eventually(n, patience, func() error {
			if got := strings.Contains(n.list("kube-nftproxy-"+proxyName), n.mine[0].Addr().String()+" "); got != want {
				return fmt.Errorf("in the instance's table: %t, want %t", got, want)
			}
			return nil
		})
	}
	for _, step := range []struct {
		label  string
		server string
	}{{"", "pod-0"}, {proxyName, "pod-0"}, {"nobody", ""}, {proxyName, "pod-0"}} {
		n.patch("mine", func(s *corev1.Service) { s.Labels = proxyLabels(step.label) })
		served(step.label == proxyName)
		// This flow has the same ports in each step. Its packet to no Service leaves an entry without translation.
		flow := func() lab.Answer {
			return n.Pods[1].Probe(n.Context(), inet.UDP, n.mine[0], lab.Options{SourcePort: 20000})
		}
		if step.server == "" {
			flow()
			for _, addr := range n.mine[:2] {
				eventually(n, patience, func() error { return reached(n.Context(), n.Pods[1], inet.TCP, addr) })
			}
			continue
		}
		n.all(n.mine, step.server)
		eventually(n, patience, func() error {
			if a := flow(); a.Server != step.server {
				return fmt.Errorf("label %q: a UDP flow ends with %s", step.label, a)
			}
			return nil
		})
	}
}

// cleanup removes the instance's rules.
func (n *neighbours) cleanup() {
	n.Helper()
	out, err := n.Node.Command(context.WithoutCancel(n.Context()), program, "--cleanup", "--service-proxy-name="+proxyName).CombinedOutput()
	if err != nil {
		n.Fatalf("--cleanup: %v\n%s", err, out)
	}
}

// testRemoval: the rules stay after the instance has stopped, until --cleanup removes them, and only them.
func (n *neighbours) testRemoval() {
	n.named.stop()
	n.all(n.mine[:2], "pod-0")
	before := n.handles(n.table)
	n.cleanup()
	if text := nft(n, n.Node, "list", "tables"); strings.Contains(text, "kube-nftproxy-"+proxyName) {
		n.Errorf("tables left:\n%s", text)
	}
	if n.handles(n.table) != before {
		n.Errorf("--cleanup changed the other program's table:\n%s", n.handles(n.table))
	}
	n.refuseOrDrop(n.mine)
	n.all(n.theirs, "pod-0")
}
