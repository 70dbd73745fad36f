package scenario

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestPortRangesPage applies the example of docs/port-ranges.md: a media server in a pod answers on 10,001 UDP ports. A client outside of the cluster
// and a pod get an answer from each port, in both families. The ports before and after the range are refused at the cluster IP.
func TestPortRangesPage(t *testing.T) {
	const first, last = 10000, 20000
	page, err := os.ReadFile("../../docs/port-ranges.md")
	lab.Must(t, err)
	fences := yamlFence.FindAllStringSubmatch(string(page), -1)
	if len(fences) != 1 {
		t.Fatalf("%d examples, want a Service", len(fences))
	}
	l := lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1})
	mustServe(t, l.Pods[0])
	serveMedia(t, l.Pods[0], first, last)
	p := pipelineForTest(t, l)
	common, err := os.ReadFile(common)
	lab.Must(t, err)
	service := fences[0][1] + "status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: \"2001:db8:2::10\"}]}}\n"
	for name, text := range map[string]string{"cluster.yaml": string(common), "service.yaml": service, "slices.yaml": mustSlices(t, "shop/media sip=8080/udp: pod-0")} {
		lab.Must(t, os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o600))
	}
	lab.Must(t, p.load())
	lab.Same(t, "", p.reported(), "problems")
	for _, to := range []string{"203.0.113.10", "2001:db8:2::10"} {
		askMedia(t, l.Client, netip.MustParseAddr(to), first, last)
	}
	for _, to := range []string{"10.96.0.10", "fd00:10:96::10"} {
		askMedia(t, l.Pods[1], netip.MustParseAddr(to), first, last)
		for _, port := range []uint16{first - 1, last + 1} {
			at := netip.AddrPortFrom(netip.MustParseAddr(to), port)
			if a := l.Pods[1].Probe(t.Context(), inet.UDP, at, lab.Options{Timeout: patience}); a.Outcome != lab.Refused {
				t.Errorf("%s: %v, want refused", at, a)
			}
		}
	}
}

// serveMedia answers each packet to one of the ports of a host with the same packet.
func serveMedia(t *testing.T, h *lab.Host, first, last int) {
	t.Helper()
	for port := first; port <= last; port++ {
		var c net.PacketConn
		err := h.Do(func() (err error) {
			c, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
			return err
		})
		lab.Must(t, err)
		t.Cleanup(func() { c.Close() }) //nolint:errcheck // only packets
		go func() {
			b := make([]byte, 16)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
	}
}

// askMedia sends packets to each port until it has answered, with its number.
func askMedia(t *testing.T, h *lab.Host, to netip.Addr, first, last int) {
	t.Helper()
	var c *net.UDPConn
	lab.Must(t, h.Do(func() (err error) { c, err = net.ListenUDP("udp", nil); return err }))
	defer c.Close() //nolint:errcheck // only packets
	const few = 64  // packets at a time, so that no buffer overflows
	missing := map[uint16]bool{}
	for port := first; port <= last; port++ {
		missing[uint16(port)] = true
	}
	for deadline := time.Now().Add(30 * time.Second); len(missing) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d ports of %s have not answered", len(missing), to)
		}
		sent := 0
		for port := range missing {
			at := netip.AddrPortFrom(to, port)
			lab.Must(t, lab.Err(c.WriteToUDPAddrPort([]byte(fmt.Sprint(port)), at)))
			if sent++; sent == few {
				break
			}
		}
		for b := make([]byte, 16); sent > 0; sent-- {
			lab.Must(t, c.SetReadDeadline(time.Now().Add(patience)))
			n, from, err := c.ReadFromUDPAddrPort(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			lab.Must(t, err)
			if port := from.Port(); from.Addr().Unmap() == to && string(b[:n]) == fmt.Sprint(port) {
				delete(missing, port)
			}
		}
	}
}

// rangedService has port ranges at load-balancer IPs.
const rangedService = `apiVersion: v1
kind: Service
metadata: {name: ranged, namespace: shop, annotations: {kube-nftproxy.io/port-ranges: "tcp/8000-9100, udp/8000-9100"}}
spec: {type: LoadBalancer, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.20}, {ip: "2001:db8:2::20"}]}}
`

// TestOtherProgramsBesideRanges: a port that another program translates, or leads to this node by policy routing, is not in the range.
func TestOtherProgramsBesideRanges(t *testing.T) {
	l := newLab(t)
	p := vipStep(t, l, within)
	step := &step{write: map[string][]byte{"ranged.yaml": []byte(rangedService + documentSeparator + mustSlices(t, "shop/ranged 8080: remote-0"))}}
	lab.Must(t, errors.Join(step.enter(p.folder), p.load()))
	const alone = `
{client,pod-0,node} {203.0.113.20,2001:db8:2::20}:{8080/tcp,9090/udp} = remote-0 from node
{client,pod-0} {203.0.113.20,2001:db8:2::20}:7999/tcp refused`
	mustPass(t, l, alone)
	t.Run("DNAT at priority 900", func(t *testing.T) {
		rules := ""
		for _, hook := range []string{"prerouting", "output"} {
			rules += fmt.Sprintf(`chain %[1]s { type nat hook %[1]s priority 900;
				ip daddr 203.0.113.20 tcp dport 8080 dnat ip to 10.244.1.11; ip6 daddr 2001:db8:2::20 tcp dport 8080 dnat ip6 to fd00:10:244:1::11; };`, hook)
		}
		addRules(t, l, rules, alone)
		mustPass(t, l, `
{client,pod-0} {203.0.113.20,2001:db8:2::20}:8080/tcp = remote-1 from kept
{client,pod-0,node} {203.0.113.20,2001:db8:2::20}:9090/udp = remote-0 from node`)
	})
	t.Run("policy routing by mark", func(t *testing.T) {
		addRules(t, l, `chain marks { type filter hook prerouting priority -150; ip daddr 203.0.113.20 udp dport 8081 meta mark set 1; ip6 daddr 2001:db8:2::20 udp dport 8081 meta mark set 1; }`, alone)
		toProxy(t, l, 8081, "203.0.113.20", "2001:db8:2::20")
	})
}
