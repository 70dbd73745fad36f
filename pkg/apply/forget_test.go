package apply

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Watch limits the remembered clients of a map until it has reported a problem.
type Watch func(t *testing.T, k *Kernel, p *plan.Planner, clients *nft.Set) model.Problem

// NewClientsFindPlaces is TestNewClientsFindPlaces without the watcher, because pkg/beside/affinity imports this
// package. Clients of one namespace fill the map, so that new clients of another namespace are not remembered. After
// the watcher of remembered clients has looked at the map, they are, and the earlier clients of the other namespace
// still are.
func NewClientsFindPlaces(t *testing.T, watch Watch) {
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w := newWire(t)
			const size, endpoints, early, all = 1600, 10, 20, 100
			evil, bank := sticky(0, 3*time.Hour, numbers(0, endpoints)...), sticky(1, 3*time.Hour, numbers(0, endpoints)...)
			evil.Name.Namespace, bank.Name.Namespace = "evil", "bank"
			p, k := newStickyPlanner(evil, bank), open(t)
			affinityMap(p, f).Size = size
			mustSync(t, k, p, Full)
			to := destinations(f, 1)[0]
			c := &crowd{wire: w, family: f, size: early, were: w.ask(f, early, to)}
			w.ask(f, size+100, destinations(f, 0)[0])
			if n := remembered(t, f); n != size {
				t.Fatalf("%d clients are remembered, want %d, the size of the map", n, size)
			}
			first := w.ask(f, all, to)
			if n := moved(first[early:], w.ask(f, all, to)[early:]); n < (all-early)/2 {
				t.Fatalf("only %d of %d new clients have moved while the map is full", n, all-early)
			}

			if report := watch(t, k, p, affinityMap(p, f)); report.Name != evil.Name {
				t.Errorf("reported %+v", report)
			}
			mustSync(t, k, p, Partial)
			n := remembered(t, f)
			if w.ask(f, 2*size, destinations(f, 0)[0]); remembered(t, f) > n {
				t.Errorf("%d clients are remembered, and %d before others of the same namespace came", remembered(t, f), n)
			}
			c.stay("after others were forgotten", to)
			c.size, c.were = all, w.ask(f, all, to)
			c.stay("new clients", to)
			if foreign, err := k.CheckRuleset(); foreign || err != nil || !k.Known() {
				t.Errorf("the batches count as foreign changes: %v, %v", foreign, err)
			}
			p.Set(bank.Name, nil)
			mustSync(t, k, p, Partial)
		})
	}
}

// TestForgetSkipsMissingClients deletes clients of which some have expired meanwhile.
func TestForgetSkipsMissingClients(t *testing.T) {
	lab.EnterNamespace(t)
	p, k := newStickyPlanner(sticky(0, time.Hour, 1)), open(t)
	mustSync(t, k, p, Full)
	set := affinityMap(p, inet.IPv4)
	var clients []nft.Element
	b := nft.NewBatch(0)
	const all, missing = 8 * fewForgotten, 3 * fewForgotten
	for i := range all {
		key := nft.Value{}.Uint32(0xa0000000).Addr(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
		clients = append(clients, nft.Element{Set: set, Key: key, Data: nft.Value{}.Uint32(0xa0000001)})
		if i != missing {
			b.AddElement(&clients[i])
		}
	}
	lab.Must(t, k.conn.Commit(b))
	k.generation++
	if n, err := k.Forget(clients); n != all-fewForgotten || err != nil {
		t.Errorf("%d forgotten, %v; want %d", n, err, all-fewForgotten)
	}
	if n, err := k.conn.Count(set); n != -1 && n != fewForgotten-1 || err != nil {
		t.Errorf("%d clients are left, %v", n, err)
	}
	if foreign, err := k.CheckRuleset(); foreign || err != nil {
		t.Errorf("foreign changes: %v, %v", foreign, err)
	}
	k.Doubt()
	if n, err := k.Forget([]nft.Element{{Set: set, Key: clients[0].Key}}); n != 0 || err != nil {
		t.Errorf("in doubt: %d, %v", n, err)
	}
}
