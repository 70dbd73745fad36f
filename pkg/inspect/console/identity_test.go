package console

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestIdentity: a wrong name of the Node, and a Node without an address, are findings that tell where node ports are served. With manifests, the fix
// names the Node that has an address of this host, here 127.0.0.1.
func TestIdentity(t *testing.T) {
	const (
		right     = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 127.0.0.1}]}}\n"
		bare      = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: Hostname, address: node-1}]}}\n"
		other     = "{apiVersion: v1, kind: Node, metadata: {name: node-2}, status: {addresses: [{type: InternalIP, address: 127.0.0.1}]}}\n"
		elsewhere = "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 240.0.0.1}]}}\n"
		nodePort  = "---\n{apiVersion: v1, kind: Service, metadata: {namespace: a, name: web}, spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 30080}]}}\n"
		all       = "node ports are served on all addresses of this node: 10.244.0.1, 192.0.2.1"
	)
	for _, c := range []struct {
		name, objects string
		api           bool
		want          []string // severity and reason, then parts of the texts
	}{
		{"the right Node", right, false, nil},
		{"a Node without an address", bare, false, []string{"warning NodeAddressUnknown", "Node node-1 has no InternalIP and no ExternalIP of IPv4, so " + all, "set --bind-address"}},
		{"a Node without an address, with an API server", bare, true, []string{"warning NodeAddressUnknown", all, "--node-ip of the kubelet", "set --bind-address"}},
		{"another Node in the manifests", other, false, []string{"wrong NodeMissing", `no Node "node-1" in the manifests, only Node node-2`, "N" + all[1:], "--hostname-override", "(node-2)"}},
		{"no Node in the manifests", "", false, []string{"note NodeAddressUnknown", "the manifests have no Node node-1, so " + all}},
		{"no Node in the manifests, and a node port", nodePort, false, []string{"warning NodeAddressUnknown", all}},
		{"no Node in the API", "", true, []string{"wrong NodeMissing", `there is no Node "node-1"`, "N" + all[1:], "kubectl get nodes"}},
		{"a Node with an address that this host lacks", strings.Replace(right, "]}}", ", {type: InternalIP, address: 240.0.0.9}]}}", 1), false,
			[]string{"warning NodeAddressElsewhere", "these addresses of Node node-1: 240.0.0.9"}},
		{"a Node of another machine", elsewhere + "---\n" + other, false, []string{"wrong NodeAddressElsewhere", "(240.0.0.1)", "(node-2)"}},
	} {
		con := newConsole(t, c.objects, "--proxy-mode=nftables")
		con.Families, con.Pending = inet.Families[:1], func() track.Pending { return track.Pending{} }
		facts := proxy.Facts{Node: model.NodeOf("node-1", con.Source.Node())}
		if facts.Node.IPs[inet.IPv4].IsValid() { // node ports are never served on 127.0.0.1
			facts.Node.IPs[inet.IPv4] = netip.MustParseAddr("192.0.2.1")
		}
		facts.NodeAddresses[inet.IPv4] = []netip.Addr{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("192.0.2.1")}
		con.Loop = &idleLoop{facts: facts}
		if c.api {
			con.API = NewAPI(func() (string, string) { return "", "" }, nil, nil)
		}
		s := &view.Status{Eligible: true, API: view.API{Answers: true}, Loop: &view.Loop{Last: &view.Sync{}}}
		o := con.readObjects(s)
		var got []string
		for _, f := range con.identity(s, o, con.Families) {
			got = append(got, string(f.Severity)+" "+string(f.Reason), f.What, f.Impact, f.Fix)
		}
		if (len(got) == 0) != (len(c.want) == 0) || len(got) > 0 && got[0] != c.want[0] {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(strings.Join(got, "\n"), part) {
				t.Errorf("%s: %q, want %q", c.name, got, part)
			}
		}
		s.Loop.Waits = "for objects"
		lab.Same(t, 0, len(con.identity(s, o, con.Families)), "%s: findings before the objects are read", c.name)
	}
}

// TestNodeOutsideNetworks: direct server return of node ports is for addresses in the networks of the flag. A family
// without a network has none on purpose.
func TestNodeOutsideNetworks(t *testing.T) {
	for flags, want := range map[string]string{
		"--direct-server-return --direct-server-return-node-cidrs=203.0.113.0/24": "192.0.2.1",
		"--direct-server-return --direct-server-return-node-cidrs=192.0.2.0/24":   "",
		"--direct-server-return --direct-server-return-node-cidrs=2001:db8::/64":  "",
		"--direct-server-return-node-cidrs=203.0.113.0/24":                        "",
	} {
		con := newConsole(t, "", strings.Fields(flags)...)
		con.Loop = &idleLoop{facts: proxy.Facts{Node: model.Node{IPs: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}
		list := con.outsideNetworks()
		if (len(list) == 0) != (want == "") || want != "" && !strings.HasSuffix(list[0].What, want) {
			t.Errorf("%s: %+v, want %q", flags, list, want)
		}
	}
}

// TestMissingFamily: a host without IPv6 is a finding if the Node has an IPv6 address. Otherwise the host may lack it on purpose.
func TestMissingFamily(t *testing.T) {
	for addresses, want := range map[string]view.Severity{
		"{type: InternalIP, address: 127.0.0.1}, {type: InternalIP, address: 2001:db8::1}": view.Wrong,
		"{type: InternalIP, address: 127.0.0.1}":                                           view.Note,
	} {
		con := newConsole(t, "{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: ["+addresses+"]}}\n")
		list := con.withoutFamily(inet.Families[:], inet.Families[:1])
		if len(list) != 1 || list[0].Severity != want || list[0].Reason != view.FamilyNotServed || !strings.Contains(list[0].What, "no IPv6") {
			t.Errorf("%s: %+v, want %s", addresses, list, want)
		}
	}
	if list := newConsole(t, "").withoutFamily(inet.Families[:1], inet.Families[:1]); len(list) > 0 {
		t.Errorf("an unused family: %+v", list)
	}
}
