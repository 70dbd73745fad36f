package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// village is a node with little room, and the Services of some namespaces.
type village struct {
	*testing.T
	*Planner
	rand     *rand.Rand
	sink     *recorder
	services map[types.NamespacedName]*model.Service
	// limits are the limits of the rooms, by [quantity].
	limits []int
	// greedy is the number of namespaces that ask for as much as they can. The others ask for less than they own.
	greedy int
	clock  int64
}

func newVillage(t *testing.T, seed uint64) *village {
	v := &village{T: t, rand: rand.New(rand.NewPCG(seed, 40)), services: map[types.NamespacedName]*model.Service{}}
	v.greedy = 1 + v.rand.IntN(20) // the reserved halves are enough for 24 namespaces
	// Enough for two Services of the other namespaces, and for a few ports with direct server return of the greedy ones.
	for _, own := range []int{60, 120, 6, 6, 8, 8, 6, 6, 6, 6} {
		v.limits = append(v.limits, 8*own*own+v.rand.IntN(100))
	}
	v.Planner = v.fresh()
	v.sink = record(t, v.Planner)
	return v
}

// fresh returns a planner with the same room and without Services.
func (v *village) fresh() *Planner { return v.limit(New(testOptions())) }

// limit gives a planner the limits of the village.
func (v *village) limit(p *Planner) *Planner {
	for q := range p.rooms {
		p.rooms[q].Room = room.New(v.limits[q])
	}
	return p
}

// namespace returns the name of a namespace. The greedy ones come first, in the order of names, too.
func (*village) namespace(i int) string { return fmt.Sprintf("n%02d", i) }

// service returns a random Service. It takes all kinds of room. Services of greedy namespaces are large and many.
func (v *village) service() *model.Service {
	r, namespace := v.rand, v.rand.IntN(v.greedy+4)
	is, i := namespace < v.greedy, v.rand.IntN(2)
	if is {
		i = v.rand.IntN(20)
	}
	name := types.NamespacedName{Namespace: v.namespace(namespace), Name: fmt.Sprint("s", i)}
	s := &model.Service{Name: name, Created: time.Unix(v.clock/3, 0), UID: fmt.Sprint(r.Uint64())}
	s.ScaleToZero = r.IntN(4) == 0
	if old := v.services[name]; old != nil {
		s.Created, s.UID = old.Created, old.UID
	}
	empty := r.IntN(4) == 0
	for n, f := range inet.Families {
		p := randomPort(r, name, f, namespace*20+i, 0, r.IntN(3) == 0, time.Duration(r.IntN(2))*time.Hour)
		p.Frontends = p.Frontends[:1+r.IntN(len(p.Frontends))]
		if p.Method, p.ClusterWeights, p.LocalWeights = randomMethod(r), nil, nil; !is {
			p.Method.Key, p.Cluster = 0, p.Cluster[:min(len(p.Cluster), 1)]
			p.Local = p.Cluster
		}
		if empty {
			p.Cluster, p.Local = nil, nil
		}
		hasEndpoints := len(p.Cluster)+len(p.Local) > 0
		if !slices.ContainsFunc(p.Frontends, func(f model.Frontend) bool { return !f.Local || f.Kind != model.ClusterIP }) {
			p.Cluster = nil // no frontend needs it
		}
		p.Hairpin, p.HasEndpoints = nil, hasEndpoints
		if is && r.IntN(3) == 0 && slices.ContainsFunc(p.Frontends, model.Frontend.MayBeDirect) {
			p.Affinity, p.MaxConnections = 0, 0
			p.Direct = &model.Direct{Elsewhere: p.Cluster, Earlier: p.Cluster, Asked: r.IntN(2) == 0, NAT: p.Method}
			p.Method.Key = balance.Flow
		}
		for j := range p.Frontends { // no Service loses an address: an address proves what its Service had
			if front := &p.Frontends[j]; front.Kind == model.NodePort {
				front.Port = uint16(10_000 + namespace*20 + i)
			} else {
				front.Addr = testAddr(f, 90+int(front.Kind), namespace*20+i)
			}
			if src := p.Frontends[j].Sources; src != nil {
				src.Allowed = nil
				for k := range 1 + r.IntN(map[bool]int{false: 1, true: 40}[is]) {
					a := testAddr(f, 1, 2*k)
					src.Allowed = append(src.Allowed, model.AddrRange{First: a, Last: a})
				}
			}
		}
		s.Ports = append(s.Ports, p)
		if r.IntN(4) > 0 {
			continue
		}
		ranges := *p
		ranges.Name.Port, ranges.Affinity, ranges.Direct, ranges.Frontends = model.RangesPort, 0, nil, nil
		for k := range 1 + r.IntN(map[bool]int{false: 1, true: 3}[is]) {
			ranges.Frontends = append(ranges.Frontends, model.Frontend{Kind: model.ClusterIP, Key: model.Key{
				Addr: testAddr(f, 90, namespace*20+i), Port: uint16(1000 * (k + 1)), Last: uint16(1000*(k+1) + 9 + n), Protocol: inet.TCP, Family: f}})
		}
		s.Ports = append(s.Ports, &ranges)
	}
	return s
}

// step changes or deletes a Service, and then plans the Services for which there is room, as the loop does.
func (v *village) step() (changed types.NamespacedName) {
	v.clock++
	s := v.service()
	if v.rand.IntN(4) == 0 {
		delete(v.services, s.Name)
		v.Set(s.Name, nil)
	} else {
		v.services[s.Name] = s
		v.Set(s.Name, s)
	}
	for names := v.TakeWaiting(4); len(names) > 0; names = v.TakeWaiting(4) {
		for _, name := range names {
			v.Set(name, v.services[name])
		}
	}
	return s.Name
}

// granted returns all that Services have been granted.
func (v *village) granted() map[portID]grant {
	return v.Numbers().grants
}

// start plans all Services with a planner, in random order. On a new node, the planner orders them by age.
func (v *village) start(p *Planner) string {
	names := slices.Collect(maps.Keys(v.services))
	v.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	sink := record(v.T, p)
	age := func(name types.NamespacedName) model.Age { return v.services[name].Age() }
	p.Begin(names, age, func(names []types.NamespacedName) {
		for _, name := range names {
			p.Set(name, v.services[name])
		}
	})
	return sink.canonical(p)
}

// recall makes a planner recall numbers from the elements of the sink, as from the kernel.
func (v *village) recall(p *Planner) {
	for _, f := range inet.Families {
		p.Resume(f, v.Totals().Next[f], nil, nil)
	}
	byName := map[string]*nft.Found{}
	at := func(s *nft.Set, key nft.Value) string { return fmt.Sprint(s.Family, s.Name, key.Bytes()) }
	for _, e := range v.sink.elements {
		byName[at(e.Set, e.Key)] = &nft.Found{Element: e}
	}
	get := func(s *nft.Set, keys []nft.Value) (out []*nft.Found, err error) {
		for _, k := range keys {
			out = append(out, byName[at(s, k)])
		}
		return out, nil
	}
	if err := p.Recall(get, slices.Collect(maps.Values(v.services))); err != nil {
		v.Fatal(err)
	}
}

// TestRoomIsFair makes random histories of a node with little room, in which some namespaces ask for as much as they
// can:
//
//   - What is served stays served, whatever others create.
//   - A namespace that asks for less than it owns lacks nothing.
//   - After a restart, the plan is the same, regardless of the order of Services, whether the numbers come from the earlier planner or the kernel.
//   - Without an earlier process, age decides.
func TestRoomIsFair(t *testing.T) {
	lacks, direct := 0, 0
	// With seed 13, the elements of a port's frontends prove different forms. With seed 38, ports with ranges get room for
	// these, but no number.
	for _, seed := range []uint64{0, 1, 2, 3, 13, 38} {
		v := newVillage(t, seed)
		for step := range 450 {
			before := v.granted()
			changed := v.step()
			after := v.granted()
			for id, had := range before {
				has := after[id]
				if id.name.NamespacedName != changed && (has.form < had.form || had.holds && !has.holds || had.number != 0 && has.number == 0) {
					t.Fatalf("seed %d, step %d: %v had %+v, now %+v, after a change of %s", seed, step, id, had, has, changed)
				}
			}
			for _, g := range after {
				if g.form == formDirect {
					direct++
				}
			}
			for name := range v.waiting {
				lacks++
				if name.Namespace >= v.namespace(v.greedy) {
					t.Fatalf("seed %d, step %d: %s lacks %v", seed, step, name, v.Service(name).Excess())
				}
			}
			if step%150 != 149 {
				continue
			}
			now := v.sink.canonical(v.Planner)
			again := v.limit(Continue(testOptions(), v.Numbers()))
			if diff := cmp.Diff(now, v.start(again)); diff != "" {
				t.Fatalf("seed %d, step %d: another planner with the same numbers (-before +after):\n%s", seed, step, diff)
			}
			again = v.fresh()
			v.recall(again)
			if diff := cmp.Diff(now, v.start(again)); diff != "" {
				t.Fatalf("seed %d, step %d: after a restart (-before +after):\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(v.start(v.fresh()), v.start(v.fresh())); diff != "" {
				t.Fatalf("seed %d, step %d: two new nodes (-one +other):\n%s", seed, step, diff)
			}
		}
	}
	if lacks == 0 || direct == 0 {
		t.Errorf("parts of Services lacked room %d times, ports had direct server return %d times", lacks, direct)
	}
}
