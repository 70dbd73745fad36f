package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Planner holds what the tables should be and keeps track of what has changed since it was last asked. It must not be
// used by two goroutines at once.
type Planner struct {
	options  Options
	layouts  [2]*layout
	tables   [2]*nft.Table
	services map[types.NamespacedName]*service
	claims   map[model.Key][]claim
	// noLocal counts the service ports of each family that have endpoints, but none for a frontend with the internal or
	// external policy Local.
	noLocal [2]struct{ internal, external int }
	// losers counts the claims that another Service has won.
	losers int
	shared map[nft.ID]*sharedElement
	// uses counts the frontends that choose a class at a step; 0 means that the class can still be chosen there.
	uses map[use]int
	// chains counts the steps at which a class's chain can be chosen; 0 means that nothing leads there any more.
	chains    map[classKey]int
	leftovers []Chain
	ids       [2]*ids
	// ranges are elements that stand for this node and the cluster, not for a Service.
	ranges map[*nft.Set][]*nft.Element

	// flows are the UDP frontends whose flows may have to go, since somebody last asked.
	flows map[model.Key]struct{}

	digests [2]uint64
	counts  map[*nft.Set]int
	layout  [2]uint64
	// delta is nil as long as nobody keeps track.
	delta *delta
}

// service is a Service as it stands in the tables.
type service struct {
	name    types.NamespacedName
	created time.Time
	ports   []*port
}

// claim is a service port's wish to be reached by a key. A cluster IP, which the API server allocates, wins over what anybody
// can write into a Service of their own; otherwise the older Service wins.
type claim struct {
	service  *service
	port     *port
	frontend *model.Frontend
}

func (c *claim) compare(d *claim) int {
	return cmp.Or(cmp.Compare(c.rank(), d.rank()), c.service.created.Compare(d.service.created),
		cmp.Compare(c.service.name.Namespace, d.service.name.Namespace),
		cmp.Compare(c.service.name.Name, d.service.name.Name))
}

func (c *claim) rank() int {
	if c.frontend.Kind == model.ClusterIP {
		return 0
	}
	return 1
}

// sharedElement is an element that several service ports need.
type sharedElement struct {
	element *nft.Element
	users   int
}

// New returns a planner for an empty cluster. It doesn't keep track of changes before [Planner.Track].
func New(o Options) *Planner {
	p := &Planner{
		options:  o,
		services: map[types.NamespacedName]*service{},
		claims:   map[model.Key][]claim{},
		shared:   map[nft.ID]*sharedElement{},
		uses:     map[use]int{},
		chains:   map[classKey]int{},
		ranges:   map[*nft.Set][]*nft.Element{},
		flows:    map[model.Key]struct{}{},
		counts:   map[*nft.Set]int{},
	}
	for _, f := range o.Families {
		l := newLayout(f)
		p.layouts[f], p.ids[f] = l, newIDs()
		p.lay(f)
		for _, e := range l.fixed() {
			p.put(e)
		}
	}
	return p
}

// lay makes the constant part of a family's table.
func (p *Planner) lay(f model.Family) {
	l := p.layouts[f]
	p.tables[f], p.layout[f] = l.table(&p.options), l.fingerprint(&p.options)
}

// SetLocalPods changes how traffic of this node's pods is recognised in a family.
func (p *Planner) SetLocalPods(f model.Family, pods LocalPods) {
	if p.layouts[f] == nil || p.options.LocalPods[f] == pods {
		return
	}
	p.options.LocalPods[f] = pods
	p.lay(f)
	if p.delta != nil {
		p.delta.rules = true
	}
}

// Leases returns the elements that have to be there anew before [Lease] has passed, of all families.
func (p *Planner) Leases() (list []*nft.Element) {
	for _, f := range p.options.Families {
		list = append(list, p.layouts[f].leases()...)
	}
	return list
}

// fixed are the elements that are always there.
func (l *layout) fixed() []*nft.Element {
	out := l.leases()
	for k := kindReject; k <= kindNodePortExternalLocal; k++ {
		for _, st := range fixedDispatch[k] {
			out = append(out, l.dispatchElement(st, class{kind: k}))
		}
	}
	return out
}

// leases are the elements of the set of the lease: the protocols that Services have.
func (l *layout) leases() (list []*nft.Element) {
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		list = append(list, &nft.Element{Set: l.lease, Key: nft.Value{}.OnlyProto(proto)})
	}
	return list
}

func (l *layout) dispatchElement(st step, c class) *nft.Element {
	return &nft.Element{Set: l.dispatch[st], Key: c.value(), Chain: c.chain(), Jump: st == stepPick}
}

// Conflict is a frontend that more than one Service claims.
type Conflict struct {
	Key           model.Key
	Kind          model.Kind
	Winner, Loser model.PortName
}

// Set makes the named Service what s says, or removes it where s is nil.
func (p *Planner) Set(name types.NamespacedName, s *model.Service) {
	old := p.services[name]
	var now *service
	if s != nil {
		now = p.newService(s, old)
		p.services[name] = now
	} else {
		delete(p.services, name)
	}
	before := p.winners(old, now)
	p.withdraw(old)
	p.claim(now)
	for _, w := range before {
		p.change(w.claim, p.winner(w.key))
	}
	p.share(now, 1)
	p.share(old, -1)
	p.countNoLocal(now, 1)
	p.countNoLocal(old, -1)
	p.releaseIDs(old, now)
}

// newService prepares a Service for the tables. What an earlier form of it had keeps its slots and ids.
func (p *Planner) newService(s *model.Service, old *service) *service {
	out := &service{name: s.Name, created: s.Created, ports: make([]*port, 0, len(s.Ports))}
	for _, sp := range s.Ports {
		if p.layouts[sp.Family] == nil {
			continue
		}
		n := &port{
			name: sp.Name, protocol: sp.Protocol, family: sp.Family, frontends: sp.Frontends,
			hairpin: sp.Hairpin, serving: sp.Serving, hasEndpoints: sp.HasEndpoints,
		}
		before := old.port(n.id())
		for ls, endpoints := range [lists][]netip.AddrPort{sp.Cluster, sp.Local} {
			n.lists[ls] = rearrange(before.lists[ls], endpoints)
		}
		if sp.Affinity > 0 {
			p.giveIDs(n, sp.Affinity)
		}
		out.ports = append(out.ports, n)
	}
	return out
}

// giveIDs numbers a service port with affinity and its endpoints. Without a number to be had, which takes 65,535 such
// ports, it goes without affinity.
func (p *Planner) giveIDs(n *port, timeout time.Duration) {
	n.ids = p.ids[n.family].port(n.id())
	if n.ids == nil {
		return
	}
	n.timeout = uint32(timeout / time.Second)
	for _, l := range n.lists {
		for _, e := range sorted(l) {
			n.ids.add(e)
		}
	}
}

// port finds a service port; it returns an empty one where there is none.
func (s *service) port(id portID) *port {
	if s != nil {
		for _, p := range s.ports {
			if p.id() == id {
				return p
			}
		}
	}
	return &port{}
}

// contest is a key with the claim that won it before a change.
type contest struct {
	key   model.Key
	claim *claim
}

// winners lists the keys that either form of a Service claims, with the present winner of each.
func (p *Planner) winners(old, now *service) []contest {
	var out []contest
	seen := map[model.Key]struct{}{}
	for _, s := range []*service{old, now} {
		s.eachFrontend(func(c claim) {
			if _, ok := seen[c.frontend.Key]; !ok {
				seen[c.frontend.Key] = struct{}{}
				p.touchFlows(c.frontend.Key)
				out = append(out, contest{c.frontend.Key, p.winner(c.frontend.Key)})
			}
		})
	}
	return out
}

func (s *service) eachFrontend(f func(claim)) {
	if s == nil {
		return
	}
	for _, p := range s.ports {
		for i := range p.frontends {
			f(claim{s, p, &p.frontends[i]})
		}
	}
}

// winner returns a copy of the claim that a key goes to, or nil.
func (p *Planner) winner(k model.Key) *claim {
	if list := p.claims[k]; len(list) > 0 {
		c := list[0]
		return &c
	}
	return nil
}

func (p *Planner) withdraw(s *service) {
	s.eachFrontend(func(c claim) {
		k := c.frontend.Key
		rest := slices.DeleteFunc(slices.Clone(p.claims[k]), func(d claim) bool { return d.service == s })
		p.setClaims(k, rest)
	})
}

// setClaims sets the claims to a key, the winner first, and keeps count of those that lose.
func (p *Planner) setClaims(k model.Key, list []claim) {
	p.losers += max(len(list)-1, 0) - max(len(p.claims[k])-1, 0)
	if len(list) == 0 {
		delete(p.claims, k)
		return
	}
	p.claims[k] = list
}

func (p *Planner) claim(s *service) {
	s.eachFrontend(func(c claim) {
		k := c.frontend.Key
		list := p.claims[k]
		at, _ := slices.BinarySearchFunc(list, c, func(a, b claim) int { return a.compare(&b) })
		p.setClaims(k, slices.Insert(slices.Clip(list), at, c))
	})
}

// ConflictsOf returns the keys of the named Service that another one claims too, with the loser of each. It is to be asked
// when all Services are up to date: an address that goes from one to another is claimed by both in between.
func (p *Planner) ConflictsOf(name types.NamespacedName) []Conflict {
	var out []Conflict
	p.services[name].eachFrontend(func(c claim) {
		list := p.claims[c.frontend.Key]
		for _, loser := range list[min(1, len(list)):] {
			out = append(out, Conflict{
				Key: c.frontend.Key, Kind: loser.frontend.Kind, Winner: list[0].port.name, Loser: loser.port.name,
			})
		}
	})
	return out
}

// change replaces the elements of one claim by those of another; either may be nil.
func (p *Planner) change(was, is *claim) {
	if was != nil && is != nil && was.frontend == is.frontend {
		return
	}
	var dropped []use
	if was != nil {
		var elements []*nft.Element
		elements, dropped = p.layouts[was.port.family].head(was.port, was.frontend)
		for _, e := range elements {
			p.remove(e)
		}
	}
	if is != nil {
		elements, used := p.layouts[is.port.family].head(is.port, is.frontend)
		for _, e := range elements {
			p.put(e)
		}
		for _, u := range used {
			p.use(u)
		}
	}
	for _, u := range dropped {
		p.drop(u)
	}
	for ls := range lists {
		p.changeSlots(was, is, ls)
	}
}

func (p *Planner) changeSlots(was, is *claim, ls list) {
	n, m := p.slots(was, ls), p.slots(is, ls)
	comparable := n > 0 && m > 0 && was.port.ids == is.port.ids
	for i := range max(n, m) {
		if comparable && i < n && i < m && was.port.lists[ls][i] == is.port.lists[ls][i] {
			continue
		}
		if i < n {
			p.remove(p.layouts[was.port.family].slot(was.port, was.frontend, ls, i))
		}
		if i < m {
			p.put(p.layouts[is.port.family].slot(is.port, is.frontend, ls, i))
		}
	}
}

// slots counts the numbered elements of a claim.
func (p *Planner) slots(c *claim, ls list) int {
	if c == nil || !slices.Contains(p.layouts[c.port.family].usedLists(c.port, c.frontend), ls) {
		return 0
	}
	return len(c.port.lists[ls])
}
