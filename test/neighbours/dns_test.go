//go:build neighbours

package neighbours

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// The cluster IPs of the Service of the cluster's DNS, to which the cache binds, and of the Service through which the cache reaches it.
var (
	dnsIPs      = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
	upstreamIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd00:10:96::b")}
)

// The answers to the name id.server, and to all other names.
const (
	fromCache, fromCluster = "127.0.0.1", "127.0.0.2"
	answers                = "198.18.0.53"
	// names is the number of names in each zone of the cluster's DNS, so that a query for the next one is not in the cache.
	names = 20000
)

// nextName counts the queries for names that the cache does not have.
var nextName atomic.Uint32

// ask queries a server for an IPv4 address.
func ask(ctx context.Context, from *lab.Host, proto inet.Protocol, server netip.AddrPort, name, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return from.Dial(ctx, proto, server) }}
	got, err := resolver.LookupNetIP(ctx, "ip4", name+".")
	if err == nil && (len(got) != 1 || got[0].Unmap().String() != want) {
		err = fmt.Errorf("%s is %v, want %s", name, got, want)
	}
	return err
}

// queries returns a check for each client, each address of the cluster's DNS, and TCP and UDP. A format has a place for the number of the name.
func queries(n *node, what, format, want string) (list []check) {
	for _, from := range []*lab.Host{n.caller(), n.Node} {
		for _, ip := range dnsIPs {
			for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
				c := check{name: what, from: from, proto: proto, to: netip.AddrPortFrom(ip, 53)}
				c.act = func(ctx context.Context) error {
					name := format
					if strings.Contains(name, "%d") {
						name = fmt.Sprintf(format, nextName.Add(1)%names)
					}
					return ask(ctx, c.from, c.proto, c.to, name, want)
				}
				list = append(list, c)
			}
		}
	}
	return list
}

// cacheAddrs returns the addresses of the cache.
func cacheAddrs() []netip.Addr {
	return append([]netip.Addr{netip.MustParseAddr("169.254.20.10")}, dnsIPs...)
}

// corefile writes the configuration of the cache, as in the manifest of NodeLocal DNSCache: only the zone cluster.local uses TCP to the upstream.
func corefile(n *node, generation int) {
	bind := "bind"
	for _, ip := range cacheAddrs() {
		bind += " " + ip.String()
	}
	upstream := fmt.Sprintf("forward . %s %s", upstreamIPs[0], upstreamIPs[1])
	n.sh("cat >/etc/Corefile <<'E'\n%sE", lines(
		"id.server:53 {", bind, "hosts {", fromCache+" id.server", fmt.Sprintf("%s g%d.id.server", fromCache, generation), "}", "}",
		"cluster.local:53 {", "errors", "cache {", "success 9984 30", "denial 9984 5", "}", "reload", "loop", bind, upstream+" {", "force_tcp", "}", "health 169.254.20.10:8080", "}",
		".:53 {", "errors", "cache 30", "reload", "loop", bind, upstream, "}"))
}

// cacheRules adds or deletes the rules of node-cache.
func cacheRules(n *node, verb string) {
	for _, ip := range cacheAddrs() {
		command := "iptables"
		if ip.Is6() {
			command = "ip6tables"
		}
		for _, proto := range []string{"tcp", "udp"} {
			for _, rule := range []string{
				"raw %s PREROUTING -p %s -d %s --dport 53 -j NOTRACK", "filter %s INPUT -p %s -d %s --dport 53 -j ACCEPT",
				"raw %s OUTPUT -p %s -s %s --sport 53 -j NOTRACK", "filter %s OUTPUT -p %s -s %s --sport 53 -j ACCEPT",
				"raw %s OUTPUT -p %s -d %s --dport 53 -j NOTRACK",
			} {
				n.sh("%s -w -t %s", command, fmt.Sprintf(rule, verb, proto, ip))
			}
		}
	}
}

// nodeLocalDNS returns a cache of DNS on the node. The second node has the cluster's DNS.
func nodeLocalDNS() neighbour {
	generation := 0
	start := func(n *node) {
		corefile(n, generation)
		n.daemon("coredns -conf /etc/Corefile", answersAt("http://169.254.20.10:8080/health"))
	}
	id := func(n *node, want string) []check { return queries(n, "name of the server", "id.server", want) }
	forwarded := func(n *node) []check {
		return append(queries(n, "query that the cache forwards over TCP", "n%d.cluster.local", answers),
			queries(n, "query that the cache forwards", "n%d.example", answers)...)
	}
	untracked := func(n *node) check {
		return check{name: "queries without connection tracking", from: n.caller(), proto: inet.UDP, to: netip.AddrPortFrom(dnsIPs[0], 53), act: func(ctx context.Context) error {
			_, _ = n.try("conntrack -D -d 10.96.0.10; conntrack -f ipv6 -D -d fd00:10:96::a") // it fails if none exists
			for _, c := range id(n, fromCache) {
				if err := c.act(ctx); err != nil {
					return err
				}
			}
			if out := n.sh("(conntrack -L -d 10.96.0.10; conntrack -f ipv6 -L -d fd00:10:96::a) 2>/dev/null"); out != "" {
				return fmt.Errorf("tracked: %s", out)
			}
			return nil
		}}
	}
	return neighbour{
		name: "NodeLocal DNSCache", version: "coredns -version | sed -n 's/^CoreDNS-/CoreDNS /p'",
		policy: "pods and the node reach the cache by the cluster IP of the cluster's DNS, without connection tracking; the cache reaches the cluster's DNS by the cluster IP of another Service; " +
			"without the cache, the cluster's DNS answers. The program node-cache was not run: the test sets its configuration, its address and its rules (NOTRACK)",
		prepare: func(n *node) {
			other := n.second()
			// The lab's node adds no link-local addresses. Without one, it cannot look for a neighbour of forwarded packets.
			n.sh("ip -6 addr add fe80::1/64 dev %s nodad", n.Clients[2].Device)
			other.sh("(echo %s id.server; for i in $(seq 0 %d); do echo %s n$i.cluster.local n$i.example; done) >/etc/names", fromCluster, names-1, answers)
			other.sh("printf '.:53 {\\nerrors\\nhealth 127.0.0.1:8080\\nhosts /etc/names\\n}\\n' >/etc/Corefile")
			other.daemon("coredns -conf /etc/Corefile", answersAt("http://127.0.0.1:8080/health"))
			endpoints := world.Endpoints([2]netip.Addr{netip.MustParseAddr(underlays[1][0]), netip.MustParseAddr(underlays[1][1])}, world.OtherNode)
			for name, ips := range map[string][]netip.Addr{"kube-dns": dnsIPs, "kube-dns-upstream": upstreamIPs} {
				s := world.ServiceAt(name, ips[0].String(), ips[1].String())
				for i := range s.Spec.Ports {
					s.Spec.Ports[i].Port = 53
				}
				s.Spec.Type = corev1.ServiceTypeClusterIP
				lab.Must(n.t, world.Write(n.manifests(), name, append(world.Slices(name, 53, endpoints), s)...))
			}
		},
		install: func(n *node, _ bool) {
			// The kernel of the test may lack devices of the type dummy.
			n.sh("ip link add nodelocaldns type bridge; ip link set nodelocaldns up")
			for _, ip := range cacheAddrs() {
				n.sh("ip addr add %s dev nodelocaldns $(case %[1]s in *:*) echo nodad;; esac)", ip)
			}
			cacheRules(n, "-A")
			start(n)
		},
		reload: func(n *node) {
			generation++
			corefile(n, generation)
			n.sh("kill -USR1 $(cat /run/pid-coredns)")
			n.eventually("the new configuration of the cache", func() error {
				return ask(n.t.Context(), n.Node, inet.UDP, netip.AddrPortFrom(dnsIPs[0], 53), fmt.Sprintf("g%d.id.server", generation), fromCache)
			})
		},
		remove:   func(n *node) { n.end("coredns"); cacheRules(n, "-D"); n.sh("ip link del nodelocaldns") },
		allowed:  func(n *node) []check { return append(id(n, fromCache), untracked(n)) },
		services: forwarded, through: forwarded,
		without: func(n *node) []check { return append(id(n, fromCluster), forwarded(n)...) },
		leaves:  true, lossless: []string{stepInstall, stepReload, stepRestart, stepRemove},
	}
}
