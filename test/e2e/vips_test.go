//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestVIPs compares the pages about ping and unused ports, and about port ranges, with the output of the program.
func TestVIPs(t *testing.T) {
	media := strings.Replace(deskService(2, "media", "type: LoadBalancer", "loadBalancer: {ingress: [{ip: 203.0.113.20}]}"),
		"name: media,", "name: media, annotations: {kube-nftproxy.io/port-ranges: udp/10000-20000},", 1)
	d := newDesk(t, deskNode+deskService(1, "web", "type: LoadBalancer", "loadBalancer: {ingress: [{ip: 203.0.113.10}]}")+deskSlice("web", "s1", deskPort, readyPod)+
		media+deskSlice("media", "s2", deskPort, readyPod),
		"--refuse-unused-ports=203.0.113.0/24", "--answer-ping=ready")
	for _, h := range []*lab.Host{d.Client, d.Pods[1]} {
		if got := h.Ping(t.Context(), addrPort("203.0.113.10").Addr(), lab.Options{Timeout: patience}); got.Outcome != lab.Answered {
			t.Errorf("ping from %s: %v", h.Name, got)
		}
	}
	unused := netip.AddrPortFrom(addrPort("203.0.113.10").Addr(), 81)
	if got := d.Pods[1].Probe(t.Context(), inet.TCP, unused, lab.Options{Timeout: patience}); got.Outcome != lab.Refused {
		t.Errorf("an unused port: %v", got)
	}
	eventually(t, patience, func() error {
		m, err := d.program.Metrics(t.Context())
		const series = `kubenftproxy_service_refused_total{namespace="default",port="",reason="unused_port",service="web"}`
		if err == nil && m[series] != 1 {
			err = fmt.Errorf("%s is %v, want 1", series, m[series])
		}
		return err
	})
	for _, p := range []struct{ page, service, packet string }{
		{"../../docs/vips.md", "default/web", "10.244.0.11 203.0.113.10:81"},
		{"../../docs/port-ranges.md", "default/media", "10.244.0.11 203.0.113.20:15000/udp"},
	} {
		services, _ := d.command("services", p.service)
		d.checkPartOf(p.page, "services", "$ kube-nftproxy services "+p.service+"\n"+services)
		trace, _ := runCommand(t, d.Node, strings.Fields("trace "+p.packet)...)
		d.checkPartOf(p.page, "trace", "$ kube-nftproxy trace "+p.packet+"\n"+trace)
	}
}
