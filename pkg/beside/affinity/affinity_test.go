package affinity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestNoNamespaceHasMoreThanItsPart reads random maps. Afterwards, the map is at most half full, or no namespace has
// more clients than its part and its share. A namespace with at most that many loses none, and a map that is at most
// half full loses none. Without the number of clients, a first reading counts them.
func TestNoNamespaceHasMoreThanItsPart(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a seed repeats a failure
		limit := 256 + random.IntN(4000)
		most := room.New(limit).Most()
		var clients []types.NamespacedName
		for n := range 1 + random.IntN(40) {
			namespace := fmt.Sprint(n)
			if n == 0 && random.IntN(2) == 0 {
				namespace = "" // the Service was deleted
			}
			size := random.IntN(2 * most)
			if random.IntN(4) == 0 {
				size = random.IntN(limit)
			}
			for range min(size, limit-len(clients)) {
				name := types.NamespacedName{Namespace: namespace, Name: "a"}
				if namespace == "" {
					name = types.NamespacedName{}
				}
				clients = append(clients, name)
			}
		}
		random.Shuffle(len(clients), func(i, j int) { clients[i], clients[j] = clients[j], clients[i] })
		counted := func(list []types.NamespacedName) map[string]int {
			counts := map[string]int{}
			for _, c := range list {
				counts[c.Namespace]++
			}
			return counts
		}
		for _, known := range []bool{true, false} {
			left, readings := clients, 1
			if !known {
				readings = 2
			}
			for i := range readings {
				total := len(left)
				if !known && i == 0 {
					total = -1
				}
				r := newTrim(limit, total)
				var kept []types.NamespacedName
				for _, c := range left {
					if !r.forgets(c) {
						kept = append(kept, c)
					}
				}
				left = kept
			}
			before, after := counted(clients), counted(left)
			for namespace, n := range before {
				lost := n - after[namespace]
				switch {
				case lost > 0 && (!reaches(len(clients), limit, half) || namespace != "" && n <= most):
					t.Errorf("seed %d: %q of %d clients has lost %d, with %d of %d clients and at most %d for a namespace",
						seed, namespace, n, lost, len(clients), limit, most)
				case lost > 0 && namespace != "" && after[namespace] < most:
					t.Errorf("seed %d: %q has kept %d clients of %d, and may have %d", seed, namespace, after[namespace], n, most)
				case after[namespace] > most && reaches(len(left), limit, half):
					t.Errorf("seed %d: %q has %d clients, and may have %d", seed, namespace, after[namespace], most)
				}
			}
		}
	}
}

// table is a map of remembered clients of up to limit clients.
type table struct {
	*Watcher
	set *nft.Set
	// counts is false for a kernel without the number of elements.
	counts  bool
	clients []nft.Element
	added   int
	// standsBy is true while another instance serves.
	standsBy bool
	readings int
	reports  []model.Problem
	// crowded are the service ports whose new clients are not remembered.
	crowded []plan.Number
}

const limit = 1600

// port returns a number of a service port.
func port(i int) plan.Number {
	return plan.NumberOfClient(&nft.Element{Set: &nft.Set{}, Key: nft.Value{}.Uint32(0xa0000000 + uint32(i)<<16)})
}

func newTable(counts bool) *table {
	s := &table{counts: counts, set: &nft.Set{Name: "affinity", Size: limit}}
	report := func(p model.Problem) { s.reports = append(s.reports, p) }
	crowd := func(_ context.Context, _ inet.Family, ports []plan.Number) error {
		s.crowded = ports
		return nil
	}
	s.Watcher = New(Config{Maps: []Map{{s.set, s}}, Forget: s.forget, Crowd: crowd, Report: report})
	return s
}

func (s *table) Count(*nft.Set) (int, error) {
	if !s.counts {
		return -1, nil
	}
	return len(s.clients), nil
}

func (s *table) Each(of *nft.Set, f func(*nft.Found) bool) (whole bool, err error) {
	if of == s.set {
		return false, errors.New("the set of the planner")
	}
	s.readings++
	for _, e := range slices.Clone(s.clients) {
		for range 2 { // while packets add clients, the kernel repeats some
			if !f(&nft.Found{Element: e}) {
				return false, nil
			}
		}
	}
	return true, nil
}

func (s *table) forget(_ context.Context, list []nft.Element) (int, error) {
	if s.standsBy {
		return 0, nil
	}
	n := len(s.clients)
	s.clients = slices.DeleteFunc(s.clients, func(e nft.Element) bool { return slices.Contains(list, e) })
	if n -= len(s.clients); n != len(list) {
		return n, errors.New("a client is missing")
	}
	return n, nil
}

// own announces the Service of one service port.
func (s *table) own(port plan.Number, service types.NamespacedName) {
	s.Watcher.own(map[plan.Number]types.NamespacedName{port: service})
}

// fill adds clients of a service port until the map has n clients.
func (s *table) fill(i, n int) {
	for len(s.clients) < n {
		s.added++
		at := s.added
		addr := netip.AddrFrom4([4]byte{10, byte(i), byte(at >> 8), byte(at)})
		key := nft.Value{}.Uint32(0xa0000000 + uint32(i)<<16).Addr(addr)
		s.clients = append(s.clients, nft.Element{Set: s.set, Key: key})
	}
}

// TestACrowdIsReportedOnce fills a map, and lets the watcher look at it until its state is stable.
func TestACrowdIsReportedOnce(t *testing.T) {
	for _, counts := range []bool{true, false} {
		t.Run(fmt.Sprintf("counts %v", counts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTable(counts)
				evil := types.NamespacedName{Namespace: "evil", Name: "web"}
				bank := types.NamespacedName{Namespace: "bank", Name: "pay"}
				look := func() State {
					for range 20 {
						_, err := s.look(t.Context(), s.maps[0])
						lab.Must(t, err)
					}
					return s.States()[0]
				}
				s.own(port(1), evil)
				s.own(port(2), bank)
				s.fill(2, 50)
				s.fill(1, limit)
				s.standsBy = true
				if st := look(); len(s.clients) != limit || st.Forgotten != 0 || st.Crowded {
					t.Errorf("while another instance serves: %+v", st)
				}
				s.standsBy = false
				st := look()
				n := len(s.clients)
				if st.Clients > n || st.Clients < n*15/16 || reaches(n, limit, half) && counts ||
					st.Forgotten != uint64(limit-n) || !st.Crowded || st.Fair || st.Service != evil {
					t.Errorf("%+v, %d clients", st, len(s.clients))
				}
				if !slices.Equal(s.crowded, []plan.Number{port(1)}) {
					t.Errorf("new clients of the service ports %v are not remembered", s.crowded)
				}
				s.fill(1, limit)
				look()
				if len(s.reports) != 1 || s.reports[0].Name != evil || s.reports[0].Event != "AffinityFull" {
					t.Errorf("reported %+v", s.reports)
				}
				others := func(e nft.Element) bool { return plan.NumberOfClient(&e) != port(2) }
				if n := len(slices.DeleteFunc(slices.Clone(s.clients), others)); n != 50 {
					t.Errorf("%d clients of bank are left, want 50", n)
				}
				// The clients of a deleted Service are forgotten, and are no reason for a report.
				s.clients = nil
				if st := look(); st.Crowded || st.Clients != 0 || len(s.crowded) > 0 {
					t.Errorf("empty: %+v, new clients of %v are not remembered", st, s.crowded)
				}
				s.own(port(1), types.NamespacedName{})
				s.fill(2, 10)
				s.fill(1, limit)
				if st := look(); st.Crowded || reaches(len(s.clients), limit, half) && counts || len(s.reports) != 1 {
					t.Errorf("without a Service: %+v, %d reports", st, len(s.reports))
				}
				// Very many small namespaces fill the map: none loses a client.
				s.clients = nil
				look()
				for i := range 30 {
					s.own(port(i), types.NamespacedName{Namespace: fmt.Sprint("n", i), Name: "web"})
					s.fill(i, min((i+1)*60, limit))
				}
				if st := look(); !st.Crowded || !st.Fair || len(s.clients) != limit || len(s.reports) != 2 {
					t.Errorf("many namespaces: %+v, %d reports", st, len(s.reports))
				}
				s.clients = nil
				for i := range 30 {
					s.own(port(i), types.NamespacedName{})
				}
				if st := s.States()[0]; st.Crowded || st.Clients != -1 {
					t.Errorf("without session affinity: %+v", st)
				}
				if st := look(); st.Crowded || st.Clients != 0 {
					t.Errorf("empty after many namespaces: %+v", st)
				}
			})
		})
	}
}

// TestReadingsNeedAServicePort: the watcher reads nothing while no service port has session affinity.
func TestReadingsNeedAServicePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTable(false)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		synctest.Wait()
		if s.readings != 0 {
			t.Error("read without a service port")
		}
		s.own(port(1), types.NamespacedName{Namespace: "bank", Name: "pay"})
		synctest.Wait()
		if s.readings != 1 {
			t.Errorf("%d readings, want 1", s.readings)
		}
		stop()
		<-ended
	})
}

// kernelTable fills a map of the kernel, and returns its reader.
func kernelTable(b *testing.B, clients int) Map {
	b.Helper()
	lab.EnterNamespace(b)
	p := plan.New(plan.Options{Families: inet.Families[:]})
	conn, err := nft.Open()
	lab.Must(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	set := plan.SetsNamed(p.Tables(), plan.AffinitySet)[0]
	batch := nft.NewBatch(0)
	batch.AddTable(&nft.Table{Family: set.Family, Name: set.Table})
	batch.AddSet(set)
	const part = 50_000
	for i := range clients {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		key := nft.Value{}.Uint32(0xa0000000 + uint32(i%256)<<16).Addr(addr)
		batch.AddElement(&nft.Element{Set: set, Key: key, Data: nft.Value{}.Uint32(0xa0000001)})
		if i%part == part-1 {
			lab.Must(b, conn.Commit(batch))
			batch = nft.NewBatch(0)
		}
	}
	return Map{set, conn}
}

// BenchmarkRead reads as many clients of a full map as one namespace keeps, and twice as many.
func BenchmarkRead(b *testing.B) {
	m := kernelTable(b, 1_000_000)
	most := newTrim(int(m.Set.Size), 0).most
	var took [2]time.Duration
	for b.Loop() {
		for i := range took {
			start, t := time.Now(), newTrim(int(m.Set.Size), 0)
			_, err := m.Reader.Each(m.Set, func(f *nft.Found) bool {
				t.repeats(f.Key.Bytes())
				t.forgets(types.NamespacedName{Namespace: "evil"})
				return t.read < most*(i+1)
			})
			lab.Must(b, err)
			took[i] += time.Since(start)
		}
	}
	for i, d := range took {
		each := float64(d.Microseconds()) / float64(b.N) / float64(most*(i+1))
		b.ReportMetric(each, [...]string{"µs/client", "µs/client-of-twice"}[i])
	}
}
