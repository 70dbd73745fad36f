package scenario

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Other programs have nat chains, too, and some of their rules match packets to Services: a transparent proxy, host ports, the connection marks of a
// network plugin, restored rules of kube-proxy. Of two chains with one priority, the kernel evaluates the younger one first.

// foreign are rules of another program that match the packets to the Service of TestWhoIsAskedFirst.
type foreign struct {
	name string
	// rules are for the nat chains at prerouting and output. With dump, they are for iptables-restore.
	rules string
	dump  bool
	// to is the host that serves packets that match; empty if they are lost.
	to string
}

// endpointOfService is the port of the endpoint of the Service, endpointOfOthers that of the endpoint of other rules, and transparentProxy that of a
// proxy on the node.
const endpointOfService, endpointOfOthers, transparentProxy = 8080, 9090, 3128

var foreignRules = []foreign{
	{name: "REDIRECT", to: "node", rules: `tcp dport { 80, 30080 } redirect to :3128`},
	{name: "DNAT", to: "pod-1", rules: `
		ip daddr { 10.96.0.10, 203.0.113.10, 192.0.2.1 } tcp dport { 80, 30080 } dnat ip to 10.244.0.11:9090
		ip6 daddr { fd00:10:96::10, 2001:db8:1::10, 2001:db8::1 } tcp dport { 80, 30080 } dnat ip6 to [fd00:10:244::11]:9090`},
	// The guard stands for policy routing by the mark, which leads packets to the wrong interface.
	{name: "CONNMARK", rules: `
		ip daddr != 10.244.0.0/16 ct mark set 0x80
		ip6 daddr != fd00:10:244::/48 ct mark set 0x80`},
	{name: "drop", rules: `tcp dport { 80, 30080 } drop`},
	{name: "restored KUBE-* dump", to: "pod-1", dump: true, rules: `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d CLUSTER -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -d BALANCER -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -d NODE -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -p tcp -m tcp --dport 30080 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination POD:9090
COMMIT
`},
}

// firstDestinations are the addresses of the Service: a cluster IP, a load-balancer IP, one that is the address of the node, and a node port.
var firstDestinations = []string{
	"10.96.0.10:80", "203.0.113.10:80", "192.0.2.1:80", "192.0.2.1:30080",
	"[fd00:10:96::10]:80", "[2001:db8:1::10]:80", "[2001:db8::1]:80", "[2001:db8::1]:30080",
}

const firstService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ports: [{name: http, port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: "2001:db8:1::10"}, {ip: 192.0.2.1}, {ip: "2001:db8::1"}]}}
`

// firstWorld is a node with the Service and the rules of another program.
type firstWorld struct {
	*lab.Lab
	folder string
}

func newFirstWorld(t *testing.T) *firstWorld {
	w := &firstWorld{Lab: lab.ForTest(t, lab.Config{Pods: 3}), folder: t.TempDir()}
	for h, port := range map[*lab.Host]uint16{w.Pods[0]: endpointOfService, w.Pods[1]: endpointOfOthers, w.Node: transparentProxy} {
		lab.Must(t, lab.Err(h.Serve(inet.TCP, port)))
	}
	shared, err := os.ReadFile(common)
	lab.Must(t, err)
	for name, text := range map[string]string{"web.yaml": firstService, "slices.yaml": mustSlices(t, fmt.Sprintf("shop/web http=%d: pod-0", endpointOfService)),
		"cluster.yaml": string(shared)} {
		lab.Must(t, os.WriteFile(filepath.Join(w.folder, name), []byte(text), 0o600))
	}
	return w
}

// ours writes the tables of the program, as a repair does after another program has deleted them.
func (w *firstWorld) ours(t *testing.T, flags []string) {
	t.Helper()
	s, err := parseSettings(flags)
	lab.Must(t, err)
	lab.Must(t, cleanUp(w.Node))
	state, err := planFolder(w.Node, s, w.folder, nil, nil)
	lab.Must(t, err)
	lab.Must(t, state.program(w.Node))
}

// load loads the rules of another program, as its start does, in place of its earlier rules.
func (w *firstWorld) load(t *testing.T, f foreign, priority int) {
	t.Helper()
	w.unload(t)
	if !f.dump {
		w.nft(t, fmt.Sprintf(`table inet foreign {
			chain prerouting { type nat hook prerouting priority %d; %s; }
			chain output { type nat hook output priority %[1]d; %[2]s; }
			chain guard { type filter hook postrouting priority 0; ct mark 0x80 drop; }
		}`, priority, f.rules))
		return
	}
	for family, addresses := range [][]string{
		inet.IPv4: {"CLUSTER", "10.96.0.10", "BALANCER", "203.0.113.10", "NODE", "192.0.2.1", "POD", "10.244.0.11"},
		inet.IPv6: {"CLUSTER", "fd00:10:96::10", "BALANCER", "2001:db8:1::10", "NODE", "2001:db8::1", "POD", "[fd00:10:244::11]"},
	} {
		w.feed(t, strings.NewReplacer(addresses...).Replace(f.rules), [...]string{"iptables-nft-restore", "ip6tables-nft-restore"}[family])
	}
}

func (w *firstWorld) unload(t *testing.T) {
	t.Helper()
	for _, table := range []string{"inet foreign", "ip nat", "ip6 nat"} {
		w.nft(t, "add table "+table+"; delete table "+table)
	}
}

func (w *firstWorld) nft(t *testing.T, input string) {
	t.Helper()
	w.feed(t, input, "nft", "-f", "-")
}

func (w *firstWorld) feed(t *testing.T, input string, command string, args ...string) {
	t.Helper()
	lab.Must(t, lab.Err((program{command, []string{command}}).run(w.Node, input, args...)))
}

// answers fails unless a host answers all packets of a pod, the node and a client to the Service.
func (w *firstWorld) answers(t *testing.T, want string) {
	t.Helper()
	for _, from := range []*lab.Host{w.Pods[2], w.Node, w.Client} {
		for _, to := range firstDestinations {
			a := from.Probe(t.Context(), inet.TCP, netip.MustParseAddrPort(to), lab.Options{Timeout: patience})
			if a.Server != want {
				t.Errorf("from %s to %s: %s, want an answer of %q", from.Name, to, a, want)
			}
		}
	}
}

// TestWhoIsAskedFirst: Services decide before all rules of other programs at dstnat while the lease lasts, in each order of starts, reloads and
// repairs. After the lease has expired, a proxy at dstnat that has taken over decides first, and chains behind dstnat do not.
func TestWhoIsAskedFirst(t *testing.T) {
	t.Parallel()
	w := newFirstWorld(t)
	const dstnat = -100
	for _, order := range []struct {
		name string
		// flags of the program: node ports are served at the addresses of the Node, or at all addresses, by other rules.
		flags []string
		do    func(t *testing.T, ours, theirs func())
	}{
		{"theirs, ours", nil, func(_ *testing.T, ours, theirs func()) { theirs(); ours() }},
		{"ours, theirs", []string{"--nodeport-addresses=0.0.0.0/0,::/0"}, func(_ *testing.T, ours, theirs func()) { ours(); theirs() }},
		{"theirs, ours, theirs reloaded", []string{"--nodeport-addresses=0.0.0.0/0,::/0"}, func(_ *testing.T, ours, theirs func()) { theirs(); ours(); theirs() }},
		{"ours, theirs, ours repaired", nil, func(_ *testing.T, ours, theirs func()) { ours(); theirs(); ours() }},
	} {
		for _, f := range foreignRules {
			set := func(t *testing.T, priority int) {
				t.Cleanup(func() { w.unload(t) })
				order.do(t, func() { w.ours(t, order.flags) }, func() { w.load(t, f, priority) })
			}
			expire := func(t *testing.T) {
				for _, family := range inet.Families {
					w.nft(t, fmt.Sprintf("flush set %s %s %s", family.Keyword(), plan.TableName, plan.LeaseSet))
				}
			}
			t.Run(f.name+"/"+order.name+"/at dstnat", func(t *testing.T) {
				set(t, dstnat)
				w.answers(t, "pod-0")
				if f.to == "pod-1" { // another proxy
					expire(t)
					w.answers(t, f.to)
				}
			})
			if f.dump {
				continue // iptables has no other priority
			}
			t.Run(f.name+"/"+order.name+"/behind dstnat, without the lease", func(t *testing.T) {
				set(t, dstnat+10)
				expire(t)
				w.answers(t, "pod-0")
			})
		}
	}
	lab.Must(t, cleanUp(w.Node))
}
