package apply

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestAfterTheLeaseAnotherProxyIsFirst: the DNAT rules of another proxy have the priority dstnat, between the two lookups of Services. The kernel evaluates them
// after the first lookup while the lease lasts, and before the second one after the lease has expired. Without another proxy, an expired lease has no
// effect on packets.
func TestAfterTheLeaseAnotherProxyIsFirst(t *testing.T) {
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w := newWire(t)
			p, k := newStickyPlanner(sticky(0, 0, 1)), open(t)
			mustSync(t, k, p, Full)
			own, foreign := pod(f, 1), pod(f, 77)
			arrive := func(when string, want netip.AddrPort) {
				t.Helper()
				for _, to := range destinations(f, 0) {
					lab.Same(t, want, w.ask(f, 1, to)[0], "%s: a packet to %s reached", when, to)
				}
			}
			nf := [...]string{"ip", "ip6"}[f]
			expire := func() { run(t, "nft", fmt.Sprintf("flush set %s kube-nftproxy lease", nf)) }
			arrive("with a lease", own)
			expire()
			arrive("without", own)
			run(t, "nft", fmt.Sprintf(`add table %[1]s other; add chain %[1]s other c { type nat hook prerouting priority dstnat; };
				add rule %[1]s other c meta l4proto udp dnat to %[2]s`, nf, foreign))
			arrive("another proxy, without a lease", foreign)
			lab.Must(t, k.Renew(p, 0))
			arrive("another proxy, with a new lease", own)
			expire()
			k.Doubt()
			mustSync(t, k, p, Adopted) // an expired lease is no reason for a full sync
			lab.Must(t, k.Renew(p, 0))
			arrive("after a restart", own)
			if changed, err := k.CheckRuleset(); changed || err != nil {
				t.Errorf("CheckRuleset() = %t, %v after renewing the lease", changed, err)
			}
			run(t, "nft", "flush ruleset")
			k.Doubt()
			mustSync(t, k, p, Full)
			arrive("after a repair", own)
		})
	}
}

// TestALeaseRunsOut: the kernel deletes the elements of the lease after their timeout, and a renewal adds them again.
func TestALeaseRunsOut(t *testing.T) {
	k, p := synced(t)
	run(t, "nft", `flush set ip kube-nftproxy lease; add element ip kube-nftproxy lease { tcp timeout 50ms, udp timeout 50ms }`)
	eventually(t, func() bool {
		list, err := k.conn.Elements(leases(p)[0])
		return err == nil && len(list) == 0
	})
	lab.Must(t, k.Renew(p, 0))
	if list, err := k.conn.Elements(leases(p)[0]); err != nil || len(list) != 3 {
		t.Errorf("%d elements, %v; want 3", len(list), err)
	}
}
