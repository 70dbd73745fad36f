package conntrack

import (
	"net"
	"net/netip"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestLookup looks up flows to Services by their original destination: before the first packet, before the first
// reply, and after it.
func TestLookup(t *testing.T) {
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			n := newNode(t)
			endpoint, clients := n.served(f)
			local := func(c net.Conn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }
			for i, to := range destinations(f) {
				flow, err := Lookup(inet.UDP, local(clients[i]), to)
				if err != nil || flow == nil {
					t.Fatalf("the flow to %s: %v, %v", to, flow, err)
				}
				if !flow.Replied || !flow.DNAT || flow.Server != endpoint || flow.Destination != to {
					t.Errorf("the flow to %s: %+v, want replies of %s", to, *flow, endpoint)
				}
			}
			to := destinations(f)[0]
			if flow, err := Lookup(inet.TCP, local(clients[0]), to); flow != nil || err != nil {
				t.Errorf("a flow of another protocol: %+v, %v", flow, err)
			}
			silent := [...]netip.AddrPort{netip.MustParseAddrPort("10.244.0.99:5353"), netip.MustParseAddrPort("[fd00:10:244::99]:5353")}[f]
			n.serve(f, inet.UDP, silent)
			fresh := n.clients(f)[0]
			if flow, err := Lookup(inet.UDP, local(fresh), to); flow != nil || err != nil {
				t.Errorf("before the first packet: %+v, %v", flow, err)
			}
			lab.Must(t, lab.Err(fresh.Write([]byte("x"))))
			flow, err := Lookup(inet.UDP, local(fresh), to)
			if err != nil || flow == nil || flow.Replied || flow.Server != silent {
				t.Errorf("without an answer: %+v, %v", flow, err)
			}
		})
	}
}
