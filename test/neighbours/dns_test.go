//go:build neighbours

package neighbours

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

const dnsPort = 53

// The addresses of the cluster's name service, of the Service through which the cache queries it, and of the cache alone.
var (
	dnsIP      = netip.MustParseAddr("10.96.0.10")
	upstreamIP = netip.MustParseAddr("10.96.0.11")
	cacheIP    = netip.MustParseAddr("169.254.20.10")
)

// The answers of the cluster's name server and of the cache.
const (
	clusterAnswer = "198.18.5.1"
	cacheAnswer   = "198.18.5.2"
)

// resolve runs a query. A star in the name becomes a new word, so that no cache knows the answer.
func (c check) resolve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*lab.DefaultTimeout)
	defer cancel()
	name := c.query
	if name[0] == '*' {
		name = fmt.Sprintf("q%d%s", time.Now().UnixNano(), name[1:])
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.from.Dial(ctx, c.proto, c.to) }}
	got, err := resolver.LookupHost(ctx, name)
	switch {
	case err != nil:
		return err
	case got[0] != c.resolved:
		return fmt.Errorf("%s: the answer is %q, want %s", name, got, c.resolved)
	}
	return nil
}

// queries returns a query over UDP and TCP.
func queries(name string, from *lab.Host, to netip.Addr, query, resolved string) (list []check) {
	for _, proto := range []inet.Protocol{inet.UDP, inet.TCP} {
		list = append(list, check{name: name, from: from, proto: proto, to: netip.AddrPortFrom(to, dnsPort), query: query, resolved: resolved})
	}
	return list
}

// dnsCache returns a cache on the addresses, and with the rules, of NodeLocal DNSCache.
func dnsCache() neighbour {
	start := func(n *node) {
		n.sh("ip link add nodelocaldns type bridge; ip link set nodelocaldns up; ip addr add %s/32 dev nodelocaldns; ip addr add %s/32 dev nodelocaldns", cacheIP, dnsIP)
		n.daemon("dnscache -conf /etc/Corefile", get("http://169.254.20.10:8080/health"))
		cacheRules(n, "-I")
	}
	stop := func(n *node) {
		n.sh("ip link del nodelocaldns")
		cacheRules(n, "-D")
		n.end("dnscache")
	}
	fresh := func(n *node) (list []check) {
		for _, from := range []*lab.Host{n.caller(), n.Node} {
			list = append(list, queries("name of the cluster", from, dnsIP, "*.cluster.local.", clusterAnswer)...)
		}
		return list
	}
	return neighbour{
		name: "NodeLocal DNSCache (CoreDNS, NOTRACK)", version: "dnscache -version | sed -n 's/^CoreDNS-//p'",
		policy: "untracked queries to the cluster IP of the name service reach the cache on the node; the cache queries the name service through a Service; " +
			"without the cache, the cluster IP leads to the name service. CoreDNS ran with the interface and the rules of NodeLocal DNSCache, whose own program was not run",
		prepare: func(n *node) {
			server := n.Pods[1]
			var objects []runtime.Object
			for name, ip := range map[string]netip.Addr{"kube-dns": dnsIP, "kube-dns-upstream": upstreamIP} {
				s := world.Service(name, corev1.IPv4Protocol)
				s.Spec.ClusterIP, s.Spec.ClusterIPs = ip.String(), []string{ip.String()}
				s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = dnsPort, dnsPort
				objects = append(objects, s, world.Slice(name, name, dnsPort, world.Endpoint(server.IPv4, world.NodeName)))
			}
			if err := world.Write(n.manifests(), "dns", objects...); err != nil {
				n.t.Fatal(err)
			}
			m := &machine{t: n.t, host: server, dir: filepath.Join(n.dir, "server")}
			if err := os.Mkdir(m.dir, 0o700); err != nil {
				n.t.Fatal(err)
			}
			m.mount()
			m.sh("cat >/etc/Corefile <<'E'\n%sE", lines(".:53 {", " errors", " template IN A cluster.local {", `  answer "{{ .Name }} 5 IN A `+clusterAnswer+`"`, " }",
				" template IN AAAA cluster.local {", "  rcode NOERROR", " }", " health 127.0.0.1:8080", "}"))
			m.daemon("dnscache -conf /etc/Corefile", get("http://127.0.0.1:8080/health"))
			n.sh("cat >/etc/Corefile <<'E'\n%sE", lines("cluster.local:53 {", " errors", " cache {", "  success 9984 30", "  denial 9984 5", " }", " reload", " loop",
				fmt.Sprintf(" bind %s %s", cacheIP, dnsIP), " hosts {", "  "+cacheAnswer+" who.cluster.local", "  fallthrough", " }",
				fmt.Sprintf(" forward . %s {", upstreamIP), "  force_tcp", " }", fmt.Sprintf(" health %s:8080", cacheIP), "}"))
		},
		install: func(n *node, _ bool) { start(n) },
		reload:  func(n *node) { stop(n); start(n) },
		remove:  stop,
		after: func(n *node) []check {
			return append(queries("name service without the cache", n.caller(), dnsIP, "who.cluster.local.", clusterAnswer), fresh(n)...)
		},
		allowed: func(n *node) (list []check) {
			for _, from := range []*lab.Host{n.caller(), n.Node} {
				list = append(list, queries("the cache, by its cluster IP", from, dnsIP, "who.cluster.local.", cacheAnswer)...)
				list = append(list, queries("the cache, by its own address", from, cacheIP, "who.cluster.local.", cacheAnswer)...)
			}
			return list
		},
		services: fresh, through: fresh,
		leaves: true, lossless: []string{stepInstall, stepRestart, stepRemove},
	}
}

// cacheRules inserts or deletes the rules of NodeLocal DNSCache.
func cacheRules(n *node, verb string) {
	for _, ip := range []netip.Addr{cacheIP, dnsIP} {
		rules := []string{fmt.Sprintf("raw %s OUTPUT -p tcp -d %s --dport 8080 -j NOTRACK", verb, ip), fmt.Sprintf("raw %s OUTPUT -p tcp -s %s --sport 8080 -j NOTRACK", verb, ip)}
		for _, proto := range []string{"tcp", "udp"} {
			for _, rule := range []string{
				"raw %s PREROUTING -p %s -d %s --dport 53 -j NOTRACK", "filter %s INPUT -p %s -d %s --dport 53 -j ACCEPT",
				"raw %s OUTPUT -p %s -s %s --sport 53 -j NOTRACK", "filter %s OUTPUT -p %s -s %s --sport 53 -j ACCEPT",
				"raw %s OUTPUT -p %s -d %s --dport 53 -j NOTRACK",
			} {
				rules = append(rules, fmt.Sprintf(rule, verb, proto, ip))
			}
		}
		for _, rule := range rules {
			n.sh("iptables -w -t %s", rule)
		}
	}
}
