package apply

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// TestAnAddedAddressNeedsNoCommit: with AnyNodeAddress, as in mode iptables, a new address of the node serves node ports without a commit. New
// addresses can be frequent, because the device of each pod can have one.
func TestAnAddedAddressNeedsNoCommit(t *testing.T) {
	w := newWire(t)
	run(t, "ip", "link", "set", "lo", "up")
	o := stickyOptions
	o.AnyNodeAddress = [2]bool{true, true}
	p, k := setSticky(plan.New(o), []*model.Service{sticky(0, 0, 1)}), open(t)
	mustSync(t, k, p, Full)
	before, err := k.conn.Generation()
	w.must(err)
	for i, f := range inet.Families {
		added := [...]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}[f]
		nodePort := netip.AddrPortFrom(added, stickyNodePort)
		run(t, "ip", "address", "add", netip.PrefixFrom(added, added.BitLen()).String(), "dev", "lo")
		eventually(t, func() bool { // the kernel adds the route of an IPv6 address after the request has returned
			routes, err := netlink.RouteGet(added.AsSlice())
			return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
		})
		p.SetNodeAddresses(f, []netip.Addr{destinations(f, 0)[2].Addr(), added})
		mustSync(t, k, p, Nothing)
		w.must(netlink.ConntrackTableFlush(netlink.ConntrackTable))
		w.send(f, i, nodePort)
		if from, at, came := w.read(5 * time.Second); !came || from != i || at != pod(f, 1) {
			t.Errorf("a packet to %s arrived at %s (%t), want %s", nodePort, at, came, pod(f, 1))
		}
	}
	if now, err := k.conn.Generation(); err != nil || now != before {
		t.Errorf("generation %d of the ruleset, %v; want %d as before", now, err, before)
	}
}
