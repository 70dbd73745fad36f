//go:build twin

package e2e

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestNodePortsOnLoopbackAreThoseOfKubeProxy makes the same changes with both programs, and compares connections and metrics.
func TestNodePortsOnLoopbackAreThoseOfKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1, Remotes: 1})
	serveEcho(t, backendPort, w.Pods[0], w.Remotes[0])
	serve(t, inet.UDP, dnsNodePort, w.Node)
	var seen [2][]string
	for i, path := range bothPrograms(t) {
		t.Run(filepath.Base(path), func(t *testing.T) { seen[i] = asked{world: w, path: path, theirs: i == 0}.in(t).loopback() })
	}
	lab.Same(t, seen[0], seen[1], "connections (-kube-proxy +kube-nftproxy)")
	lab.Same(t, 9, len(seen[0]), "results")
}

// loopback returns how connections end and the values of metrics, after it has checked which servers they reach.
func (a asked) loopback() (seen []string) {
	here, there := endpointsOf(a.Pods[0]), endpointsOf(a.Remotes[0])
	web, dns := onNodePort("web", webNodePort), onNodePort("dns", dnsNodePort)
	dns.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	a.apply(web, dns)
	defer a.delete(web, dns)
	a.applySlices("a", here)
	p := a.run("--nodeport-addresses=primary,localhost", "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true")
	a.reachLoopback(webNodePort, "pod-0")
	a.refusedOnLoopback(inet.UDP, dnsNodePort)
	note := func(name string, err error) {
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			seen = append(seen, fmt.Sprintf("%s: %v", name, err))
			return
		}
		seen = append(seen, fmt.Sprintf("%s: ended %t", name, err != nil))
	}
	var held []conversation
	for _, to := range onLoopback(webNodePort) {
		held = append(held, a.hold(to))
	}
	check := func(name string) {
		for i, c := range held {
			note(fmt.Sprintf("connection %d after %s", i, name), c.goOn())
		}
	}
	a.applySlices("b", there)
	a.reachLoopback(webNodePort, "pod-0", "remote-0")
	check("another endpoint")
	web.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	a.apply(web)
	a.oneServer(onLoopback(webNodePort))
	web.Spec.SessionAffinity, web.Spec.ExternalTrafficPolicy = corev1.ServiceAffinityNone, corev1.ServiceExternalTrafficPolicyLocal
	a.apply(web)
	a.reachLoopback(webNodePort, "pod-0")
	check("policy Local")
	remove := func(name string) { a.delete(slice("web", "web-"+name+"-0"), slice("web", "web-"+name+"-1")) }
	remove("a")
	a.refusedOnLoopback(inet.TCP, webNodePort) // no endpoint on this node
	for i, c := range held {
		_, err := c.in.ReadString('\n')
		note(fmt.Sprintf("connection %d without a local endpoint", i), err)
	}
	a.applySlices("a", here)
	a.reachLoopback(webNodePort, "pod-0")
	m, err := p.Metrics(a.Context())
	must(a, err)
	for _, f := range inet.Families {
		label := fmt.Sprintf(`{ip_family="%s"}`, f)
		seen = append(seen, fmt.Sprintf("%s: %v listeners, UDP refused %t", f, m["kubeproxy_nftables_localhost_nodeport_listeners"+label],
			m[fmt.Sprintf(`kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="%s",protocol="UDP"}`, f)] > 0))
	}
	remove("a")
	remove("b")
	a.refusedOnLoopback(inet.TCP, webNodePort)
	_, sctp := m[`kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="IPv4",protocol="SCTP"}`]
	return append(seen, fmt.Sprintf("a series for SCTP: %t", sctp))
}
