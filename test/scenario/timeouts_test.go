package scenario

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// ofNode is the node's timeout of UDP flows in TestTimeouts.
const ofNode = 400 * time.Second

// timedServices are Services for each path through the rules, with other timeouts than the node.
const timedServices = `
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop, annotations: {kube-nftproxy.io/conntrack-timeouts: "udp=1m/1h,tcp=2h"}}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  externalIPs: [198.51.100.9, "2001:db8:9::9"]
  loadBalancerSourceRanges: [192.0.2.0/24, "2001:db8::/64"]
  ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30053}, {name: echo, port: 70, nodePort: 30070}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: "2001:db8:1::1"}]}}
---
apiVersion: v1
kind: Service
metadata:
  name: sticky
  namespace: shop
  annotations: {kube-nftproxy.io/conntrack-timeouts: "udp=10s/10s,tcp=1h", kube-nftproxy.io/port-ranges: udp/9000-9090}
spec:
  type: NodePort
  clusterIPs: [10.96.0.11, "fd00:10:96::11"]
  sessionAffinity: ClientIP
  externalTrafficPolicy: Local
  ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30153}, {name: echo, port: 70, nodePort: 30170}]
---
apiVersion: v1
kind: Service
metadata:
  name: full
  namespace: shop
  annotations: {kube-nftproxy.io/conntrack-timeouts: udp=10s/10s, kube-nftproxy.io/max-connections: "1000"}
spec:
  clusterIPs: [10.96.0.12, "fd00:10:96::12"]
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: shop}
spec:
  clusterIPs: [10.96.0.14, "fd00:10:96::14"]
  ports: [{name: dns, port: 53, protocol: UDP}, {name: echo, port: 70}]
`

// tracked are the entries of connection tracking on the node of a lab.
type tracked struct {
	*testing.T
	*pipeline
	lab *lab.Lab
	// port is the last port from which a flow began.
	port uint16
}

// write replaces the Services, and waits until the kernel has them.
func (c *tracked) write(services string) {
	c.Helper()
	slices := mustSlices(c.T, fmt.Sprintf(`shop/dns dns=%[1]d/udp echo=%[2]d: pod-0
shop/sticky dns=9090/udp echo=%[2]d: pod-0
shop/full dns=%[1]d/udp: pod-0
shop/plain dns=%[1]d/udp echo=%[2]d: pod-0
`, firstPort, echoPort))
	lab.Must(c, os.WriteFile(filepath.Join(c.folder, "shop.yaml"), []byte(services+documentSeparator+slices), 0o600))
	lab.Must(c, c.load())
}

// remains returns the rest of the timeout of the connection from a port to an address.
func (c *tracked) remains(p inet.Protocol, port uint16, to netip.AddrPort) (rest time.Duration) {
	c.Helper()
	family := netlink.InetFamily(inet.FamilyOf(to.Addr()).Number())
	lab.Must(c, c.lab.Node.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		for _, f := range flows {
			at, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if f.Forward.Protocol == uint8(p) && f.Forward.SrcPort == port &&
				netip.AddrPortFrom(at.Unmap(), f.Forward.DstPort) == to {
				rest = time.Duration(f.TimeOut) * time.Second
			}
		}
		return err
	}))
	return rest
}

// within waits until the rest of a timeout is above least, and at most most. On a busy machine, an answer may be late. If
// it is two seconds late, the flow has the timeout of a replied one, and the next attempt makes another flow.
func (c *tracked) within(what string, least, most time.Duration, rest func() time.Duration) {
	c.Helper()
	if err := lab.Await(c.Context(), 10*patience, func() error { // a flow is replied after two seconds
		if got := rest(); got <= least || got > most {
			return fmt.Errorf("%s: %v remain, want more than %v, and at most %v", what, got, least, most)
		}
		return nil
	}); err != nil {
		c.Fatal(err)
	}
}

// begin returns a function that sends a datagram from another port each time, and returns the rest of the timeout.
func (c *tracked) begin(from *lab.Host, to netip.AddrPort) func() time.Duration {
	return func() time.Duration {
		c.port++
		return c.ask(from, c.port, to)
	}
}

// ask sends a datagram from a port, and returns the rest of the timeout after the answer; 0 if no answer arrives in time.
func (c *tracked) ask(from *lab.Host, port uint16, to netip.AddrPort) time.Duration {
	c.Helper()
	if a := from.Probe(c.Context(), inet.UDP, to, lab.Options{SourcePort: port}); a.Outcome != lab.Answered {
		return 0
	}
	return c.remains(inet.UDP, port, to)
}

// TestTimeouts: a connection to a Service has the timeouts of its annotation, by all paths through the rules, and all
// other connections have those of the node. Changes do not affect it, as long as a Service has its timeouts.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, name := range []string{"udp_timeout", "udp_timeout_stream"} {
		l.Node.Run(t, "sysctl", "-qw", fmt.Sprintf("net.netfilter.nf_conntrack_%s=%.0f", name, ofNode.Seconds()))
	}
	s, err := parseSettings(nil)
	lab.Must(t, err)
	p, err := startPipeline(l.Node, s, t.TempDir())
	lab.Must(t, err)
	c := &tracked{t, p, l, 30000}
	t.Cleanup(func() { lab.Must(t, errors.Join(c.close(), cleanUp(l.Node))) })
	c.write(timedServices)
	pod, client, node := l.Pods[1], l.Client, l.Node
	const untimed, none = 10 * time.Hour, 0
	for f, at := range [2]map[string]string{
		{
			"dns": "10.96.0.10", "sticky": "10.96.0.11", "full": "10.96.0.12", "plain": "10.96.0.14",
			"node": "192.0.2.1", "balancer": "203.0.113.1", "external": "198.51.100.9",
		},
		{
			"dns": "fd00:10:96::10", "sticky": "fd00:10:96::11", "full": "fd00:10:96::12", "plain": "fd00:10:96::14",
			"node": "2001:db8::1", "balancer": "2001:db8:1::1", "external": "2001:db8:9::9",
		},
	} {
		for _, tc := range []struct {
			from        *lab.Host
			protocol    inet.Protocol
			to          string
			port        uint16
			least, most time.Duration
		}{
			{pod, inet.UDP, "dns", 53, none, time.Minute},
			{node, inet.UDP, "dns", 53, none, time.Minute},
			{client, inet.UDP, "node", 30053, none, time.Minute},
			{client, inet.UDP, "balancer", 53, none, time.Minute},
			{client, inet.UDP, "external", 53, none, time.Minute},
			{pod, inet.UDP, "sticky", 53, none, 10 * time.Second},
			{client, inet.UDP, "node", 30153, none, 10 * time.Second},
			{node, inet.UDP, "node", 30153, none, 10 * time.Second},
			{pod, inet.UDP, "sticky", 9090, none, 10 * time.Second},
			{pod, inet.UDP, "full", 53, none, 10 * time.Second},
			{pod, inet.UDP, "plain", 53, time.Minute, ofNode},
			{pod, inet.TCP, "dns", 70, time.Hour, 2 * time.Hour},
			{client, inet.TCP, "node", 30070, time.Hour, 2 * time.Hour},
			{client, inet.TCP, "node", 30170, ofNode, time.Hour},
			{pod, inet.TCP, "plain", 70, untimed, 1000 * time.Hour},
		} {
			to := netip.AddrPortFrom(netip.MustParseAddr(at[tc.to]), tc.port)
			what := fmt.Sprintf("%s from %s to %s", tc.protocol, tc.from.Name, to)
			if tc.protocol == inet.UDP {
				c.within(what, tc.least, tc.most, c.begin(tc.from, to))
				continue
			}
			conn, err := tc.from.Dial(t.Context(), inet.TCP, to)
			lab.Must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			// Until the client has acknowledged the greeting, the timeout is at most five minutes.
			port := conn.LocalAddr().(*net.TCPAddr).AddrPort().Port()
			c.within(what, tc.least, tc.most, func() time.Duration { return c.remains(inet.TCP, port, to) })
		}

		dns := netip.AddrPortFrom(netip.MustParseAddr(at["dns"]), 53)
		c.port++
		port := c.port
		stream := func() time.Duration { return c.ask(pod, port, dns) }
		c.within("a flow of two seconds", ofNode, time.Hour, stream)
		c.write(strings.ReplaceAll(timedServices, "udp=1m/1h,", ""))
		c.within("a flow after the annotation has changed", ofNode, time.Hour, stream)
		c.within("a new flow after the annotation has changed", time.Minute, ofNode, c.begin(pod, dns))
		c.write(timedServices)
		flush := "nft flush chain " + inet.Families[f].Keyword() + " kube-nftproxy timeouts-udp-1m-1h"
		for _, fault := range []string{restart, flush} {
			c.pipeline, err = c.fault(node, s, fault)
			lab.Must(t, err)
		}
		lab.Must(t, c.loadAfter([]string{restart}))
		if _, err := c.repaired(func() (string, error) { return c.missingRule(f), nil }); err != nil {
			t.Error(err)
		}
		c.within("a flow after a restart and a repair", ofNode, time.Hour, stream)
		c.within("a new flow after a restart and a repair", none, time.Minute, c.begin(pod, dns))
		c.write(strings.ReplaceAll(timedServices, "udp=1m/1h,", ""))
		lab.Must(t, c.retire())
		if list := node.Run(t, "nft", "list", "ruleset"); strings.Contains(list, "udp-1m-1h") {
			t.Error("unused timeouts stay")
		}
		c.within("a flow after its timeouts are deleted", time.Minute, ofNode, stream)
		c.write(timedServices)
	}
}

// missingRule returns the list of the rules of a chain of timeouts if it is empty.
func (c *tracked) missingRule(f int) string {
	family := inet.Families[f].Keyword()
	out := c.lab.Node.Run(c.T, "nft", "list", "chain", family, "kube-nftproxy", "timeouts-udp-1m-1h")
	if strings.Contains(out, "ct timeout set") {
		return ""
	}
	return out
}
