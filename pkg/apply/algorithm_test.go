package apply

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// withMethod returns a Service with a method and the weights of its endpoints, which are nil if all are equal.
func withMethod(i int, name string, affinity time.Duration, endpoints int, weights []uint16) *model.Service {
	s := sticky(i, affinity, numbers(0, endpoints)...)
	for _, p := range s.Ports {
		p.Method, _ = balance.Parse(name)
		p.ClusterWeights = weights
	}
	return s
}

// hashKey returns the bytes that the kernel hashes for a client: the content of the registers after the expression "ip saddr",
// "ip saddr & MASK" or "ip saddr . th sport".
func hashKey(key balance.Key, prefix uint8, client netip.AddrPort) []byte {
	if key == balance.Source {
		masked, _ := client.Addr().Prefix(int(prefix))
		return masked.Addr().AsSlice()
	}
	b := binary.BigEndian.AppendUint16(client.Addr().AsSlice(), client.Port())
	return append(b, 0, 0)
}

// predicted returns the endpoint of each client by the plan's own hash, for packets with the wire's present source port.
func (w *wire) predicted(p *model.ServicePort, clients int) []netip.AddrPort {
	slots := p.Method.Fill(p.Cluster, p.ClusterWeights)
	list := make([]netip.AddrPort, clients)
	for i := range list {
		key := hashKey(p.Method.Key, p.Method.Prefixes[p.Family], netip.AddrPortFrom(client(p.Family, i), w.port))
		list[i] = slots[balance.Slot(key, balance.Seed, uint32(len(slots)))]
	}
	return list
}

// The kernel chooses the endpoints that the plan's own hash predicts, with and without affinity, at each kind of address.
func TestClientsGetTheEndpointOfTheirHash(t *testing.T) {
	services := []*model.Service{
		withMethod(0, "maglev", 0, 10, nil),
		withMethod(1, "maglev", time.Hour, 30, nil),
		withMethod(2, "source-hash", 0, 10, []uint16{1, 1, 2, 4, 1, 1, 1, 1, 1, 1}),
		withMethod(3, "source-hash/28,64", 0, 90, nil),
		withMethod(4, "source-hash/24,128", time.Hour, 10, nil),
	}
	const clients = 1000
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w, k := newWire(t), open(t)
			mustSync(t, k, newStickyPlanner(services...), Full)
			for i, s := range services {
				var remembered []netip.AddrPort
				for _, to := range destinations(f, i) {
					got, want := w.ask(f, clients, to), w.predicted(s.Ports[f], clients)
					if remembered != nil {
						want = remembered
					} else if s.Ports[f].Affinity > 0 {
						remembered = want
					}
					if n := moved(want, got); n > 0 {
						t.Errorf("%v at %s: %d of %d clients are at another endpoint than predicted", s.Ports[f].Method, to, n, clients)
					}
				}
			}
		})
	}
}

// A change of one endpoint or of the method sends only the elements that differ. The kernel then has the same elements as after a fresh start.
func TestChangesOfAlgorithms(t *testing.T) {
	newWire(t)
	r := rand.New(rand.NewPCG(1, 2))
	k, p := open(t), newStickyPlanner(withMethod(0, "maglev", 0, 10, nil))
	mustSync(t, k, p, Full)
	names := []string{"random", "maglev", "source-hash", "source-hash/24,56"}
	var s *model.Service
	for step := range 40 {
		n := 1 + r.IntN(30)
		var weights []uint16
		if r.IntN(2) == 0 {
			for range n {
				weights = append(weights, uint16(1+r.IntN(4)))
			}
			weights = balance.Reduce(weights)
		}
		s = withMethod(0, names[r.IntN(len(names))], time.Duration(r.IntN(2))*time.Hour, n, weights)
		p.Set(s.Name, s)
		if _, err := k.Sync(p); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if diff := cmp.Diff(planned(k, p), inKernel(t, k, p)); diff != "" {
			t.Fatalf("step %d, %v: elements (-planned +in the kernel):\n%s", step, s.Ports[0].Method, diff)
		}
	}
	s = withMethod(0, "maglev", 0, 10, nil)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	s = withMethod(0, "maglev", 0, 10, nil)
	for _, port := range s.Ports {
		port.Cluster = slices.Delete(slices.Clone(port.Cluster), 3, 4)
	}
	p.Set(s.Name, s)
	// Of 251 slots, about a seventh changes; each change is a deletion and an addition.
	if r := mustSync(t, k, p, Partial); r.Elements > 2*2*251/4 {
		t.Errorf("one endpoint less changes %d elements", r.Elements)
	}
	restarted := open(t)
	mustSync(t, restarted, resumeSticky(t, restarted, s), Adopted)
}
