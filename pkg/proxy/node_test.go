package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// setNode sets the Node, as an informer's handler would; nil deletes it.
func (b *bench) setNode(node *corev1.Node) {
	b.source.mu.Lock()
	b.source.node = node
	b.source.mu.Unlock()
	b.Tracker.MarkNode()
}

func node(podCIDRs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
}

// recognises reports whether the rules in the kernel recognise local pods by a prefix.
func (b *bench) recognises(prefix string) bool {
	o := plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000}
	o.LocalPods[inet.IPv4].Prefix = netip.MustParsePrefix(prefix)
	b.kernel.mu.Lock()
	defer b.kernel.mu.Unlock()
	return b.kernel.rules == nft.Fingerprint(plan.New(o).Rules().Samples()[0])
}

func TestPodCIDRsOfTheNodeAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.NodeCIDR, b.kernel.readRules = true, true
		stop := b.start(t)
		b.set(1, 2)
		close(b.source.synced)
		for _, none := range []*corev1.Node{nil, node(), node("nonsense")} {
			b.setNode(none)
			time.Sleep(time.Minute)
			if _, syncs := b.kernel.held(); syncs != 0 {
				t.Fatalf("%d syncs without a prefix in the Node %v", syncs, none)
			}
		}
		for _, tc := range []struct {
			node *corev1.Node
			want string
		}{
			{node("10.244.1.0/24", "fd00::/64"), "10.244.1.0/24"},
			{node("10.244.2.0/24", "10.244.3.0/24"), "10.244.2.0/24"},
			{node("nonsense", "10.244.4.0/24"), "10.244.4.0/24"},
			// The Node registers again. Its pods keep their addresses.
			{nil, "10.244.4.0/24"}, {node(), "10.244.4.0/24"},
		} {
			b.setNode(tc.node)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if !b.recognises(tc.want) {
				t.Errorf("Node %v: the rules are not those for %s", tc.node, tc.want)
			}
		}
		stop()
		if len(b.problems) != 1 || b.problems[0].Field != "spec.podCIDRs[0]" {
			t.Errorf("problems: %v, want one of spec.podCIDRs[0]", b.problems)
		}
	})
}

func TestRunFailsWithoutPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.NodeCIDR = true
		b.setNode(node())
		close(b.source.synced)
		begin := time.Now()
		err := b.Run(t.Context())
		lab.Fails(t, err, `timeout waiting for PodCIDR allocation on node "node-1"`, "Run()")
		lab.Same(t, 5*time.Minute, time.Since(begin), "time until Run() returned")
	})
}

func TestADeletedNodeKeepsItsAddresses(t *testing.T) {
	run(t, func(b *bench) {
		b.NodePorts.Local = func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, nil
		}
		close(b.source.synced)
		at := func(addrs ...string) *corev1.Node {
			n := node()
			for _, a := range addrs {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
			}
			return n
		}
		for _, tc := range []struct {
			node *corev1.Node
			want string
		}{
			{at("192.0.2.1"), "192.0.2.1"}, {nil, "192.0.2.1"}, {at(), "192.0.2.1"}, {at("192.0.2.2"), "192.0.2.2"},
		} {
			b.setNode(tc.node)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			held, _ := b.kernel.held()
			var got []string
			for _, e := range held {
				if strings.Contains(e, "ip node-addresses") {
					got = append(got, e)
				}
			}
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("Node %v: node ports are served at %v, want %s", tc.node, got, tc.want)
			}
		}
	})
}

// An address of the Node serves node ports only when an interface has it. Until then, the address may belong to
// another machine, and health checks cannot listen on it.
func TestANodeAddressServesOnceAnInterfaceHasIt(t *testing.T) {
	run(t, func(b *bench) {
		up := netip.MustParseAddr("192.0.2.1")
		var local atomic.Pointer[[]netip.Addr]
		local.Store(&[]netip.Addr{netip.MustParseAddr("203.0.113.1")})
		b.NodePorts.Local = func() ([]netip.Addr, error) { return *local.Load(), nil }
		var sockets []netip.Addr
		b.Listeners = []beside.Listener{{Node: func(n *beside.Node) { sockets = n.Sockets[inet.IPv4] }}}
		n := node()
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: up.String()}}
		close(b.source.synced)
		b.setNode(n)
		served := func() (list []string) {
			time.Sleep(2 * time.Second)
			synctest.Wait()
			held, _ := b.kernel.held()
			for _, e := range held {
				if strings.Contains(e, "ip node-addresses") {
					list = append(list, e)
				}
			}
			return list
		}
		if got := served(); len(got)+len(sockets) != 0 {
			t.Errorf("no interface has the address: node ports are served at %v, health checks at %v", got, sockets)
		}
		local.Store(&[]netip.Addr{up})
		b.Tracker.MarkNode() // as host.FollowAddresses does
		if got := served(); len(got) != 1 || !strings.Contains(got[0], up.String()) || !slices.Equal(sockets, []netip.Addr{up}) {
			t.Errorf("an interface has the address: node ports are served at %v, health checks at %v", got, sockets)
		}
	})
}

// listedSource counts the lists of all Services.
type listedSource struct {
	*fakeSource
	listed atomic.Int32
}

func (s *listedSource) Services() []types.NamespacedName {
	s.listed.Add(1)
	return s.fakeSource.Services()
}

// TestANodeThatChangesReachesAllServices: a change of the Node causes a sync of all Services. The first sync does not
// list all Services, because all of them are marked.
func TestANodeThatChangesReachesAllServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		s := &listedSource{fakeSource: b.source}
		b.Source = s
		inZone := func(zone string) *corev1.Node {
			n := node()
			n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
			return n
		}
		defer b.start(t)()
		name := b.set(1, 2)
		b.setNode(inZone("a"))
		close(b.source.synced)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if held, syncs := b.kernel.held(); len(held) == 0 || syncs == 0 || s.listed.Load() != 0 {
			t.Errorf("at the start: %d syncs, %d elements, all Services were listed %d times", syncs, len(held), s.listed.Load())
		}
		var asked []types.NamespacedName
		b.source.mu.Lock()
		b.source.built = func(n types.NamespacedName) { asked = append(asked, n) }
		b.source.mu.Unlock()
		b.setNode(inZone("b"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(asked) != 1 || asked[0] != name || s.listed.Load() != 1 {
			t.Errorf("in another zone: Services %v were read, all were listed %d times", asked, s.listed.Load())
		}
	})
}
