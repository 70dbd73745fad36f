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
	claims   map[model.Key]contenders
	// noLocal counts the service ports of each family that have endpoints, but none for a frontend with the internal or
	// external policy Local.
	noLocal [2]struct{ internal, external int }
	// losers counts the claims that another Service has won.
	losers int
	shared map[nft.ID]sharedElement
	// uses counts the frontends that choose a class at a step; 0 means that the class can still be chosen there.
	uses map[use]int
	// chains counts the steps at which a class's chain can be chosen; 0 means that nothing leads there any more.
	chains    map[classKey]int
	leftovers []Chain
	ids       [2]*ids
	// ranges are elements that stand for this node and the cluster, not for a Service.
	ranges map[*nft.Set][]nft.Element

	// flows are the UDP frontends whose flows may have to go, since somebody last asked.
	flows map[model.Key]struct{}

	digests [2]uint64
	counts  map[*nft.Set]int
	layout  [2]uint64
	// delta is nil as long as nobody keeps track.
	delta *delta
	// contests, usesRoom and slots are working memory of one call.
	contests []contest
	usesRoom [2][]use
	slots    [2]slots
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

// contenders are the claims to one key.
type contenders struct {
	winner claim
	// losers are in the order in which they would win.
	losers []claim
}

func (c *claim) compare(d *claim) int {
	return cmp.Or(cmp.Compare(c.rank(), d.rank()), c.service.created.Compare(d.service.created),
		model.CompareNames(c.service.name, d.service.name))
}

func (c *claim) rank() int {
	if c.frontend.Kind == model.ClusterIP {
		return 0
	}
	return 1
}

// sharedElement is an element that several service ports need.
type sharedElement struct {
	data  nft.Value
	users int32
}

// New returns a planner for an empty cluster. It doesn't keep track of changes before [Planner.Track].
func New(o Options) *Planner {
	p := &Planner{
		options:  o,
		services: map[types.NamespacedName]*service{},
		claims:   map[model.Key]contenders{},
		shared:   map[nft.ID]sharedElement{},
		uses:     map[use]int{},
		chains:   map[classKey]int{},
		ranges:   map[*nft.Set][]nft.Element{},
		flows:    map[model.Key]struct{}{},
		counts:   map[*nft.Set]int{},
	}
	for _, f := range o.Families {
		l := newLayout(f)
		if o.CountEndpoints {
			l.countedEndpoints(func(s *nft.Set, _ role) { s.Counter = true })
		}
		p.layouts[f], p.ids[f] = l, newIDs()
		p.lay(f)
		for _, e := range l.fixed() {
			p.put(&e)
		}
	}
	return p
}

// Expect makes room for a number of Services that are about to change: growing step by step would cost as much as planning them.
func (p *Planner) Expect(services int) {
	// So many elements change with one of ten endpoints; but it may be that most Services turn out to be as they were.
	const each, most = 4, 8192
	if p.delta != nil {
		p.delta.expect(min(each*services, most))
	}
	if len(p.services) > 0 {
		return
	}
	p.services = make(map[types.NamespacedName]*service, services)
	p.claims = make(map[model.Key]contenders, services)
	p.shared = make(map[nft.ID]sharedElement, services)
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
func (p *Planner) Leases() (list []nft.Element) {
	for _, f := range p.options.Families {
		list = append(list, p.layouts[f].leases()...)
	}
	return list
}

// fixed are the elements that are always there.
func (l *layout) fixed() []nft.Element {
	out := l.leases()
	for k := kindReject; k <= kindNodePortExternalLocal; k++ {
		for _, st := range fixedDispatch[k] {
			out = append(out, l.dispatchElement(st, class{kind: k}))
		}
	}
	return out
}

// leases are the elements of the set of the lease: the protocols that Services have.
func (l *layout) leases() (list []nft.Element) {
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		list = append(list, nft.Element{Set: l.lease, Key: nft.Value{}.OnlyProto(proto)})
	}
	return list
}

func (l *layout) dispatchElement(st step, c class) nft.Element {
	return nft.Element{Set: l.dispatch[st], Key: c.value(), Chain: c.chain(), Jump: st == stepPick}
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
	p.noteWinners(old, now)
	p.withdraw(old)
	p.claim(now)
	p.touchSources(p.contests)
	for i := range p.contests {
		c := &p.contests[i]
		p.change(c.winner, p.claims[c.key].winner)
	}
	clear(p.contests)
	p.share(now, old, 1)
	p.share(old, now, -1)
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
			name: sp.Name, comment: sp.Name.String(), protocol: sp.Protocol, family: sp.Family, frontends: sp.Frontends,
			hairpin: sp.Hairpin, serving: sp.Serving, hasEndpoints: sp.HasEndpoints,
		}
		before := old.port(n.id())
		for ls, endpoints := range [lists][]netip.AddrPort{sp.Cluster, sp.Local} {
			n.arrange(before, list(ls), endpoints)
		}
		if sp.Affinity > 0 {
			p.giveIDs(n, before, sp.Affinity)
		}
		out.ports = append(out.ports, n)
	}
	return out
}

// giveIDs numbers a service port with affinity and its endpoints. Without a number to be had, which takes 65,535 such
// ports, it goes without affinity.
func (p *Planner) giveIDs(n, before *port, timeout time.Duration) {
	n.ids = p.ids[n.family].port(n.id())
	if n.ids == nil {
		return
	}
	n.timeout = uint32(timeout / time.Second)
	for ls := range lists {
		for _, e := range sorted(n.backends(before, ls)) {
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

// contest is a key with the claim that won it before a change, if there was one.
type contest struct {
	key    model.Key
	winner claim
}

// noteWinners lists the keys that either form of a Service claims, with the present winner of each. The earlier form claims
// its keys still.
func (p *Planner) noteWinners(old, now *service) {
	p.contests = p.contests[:0]
	note := func(k model.Key, c *contenders) {
		p.touchFlows(k)
		p.contests = append(p.contests, contest{k, c.winner})
	}
	old.eachFrontend(func(c claim) {
		contenders := p.claims[c.frontend.Key]
		note(c.frontend.Key, &contenders)
	})
	now.eachFrontend(func(c claim) {
		contenders := p.claims[c.frontend.Key]
		if !contenders.has(old) {
			note(c.frontend.Key, &contenders)
		}
	})
}

// has tells whether a Service is among the contenders.
func (c *contenders) has(s *service) bool {
	return s != nil && (c.winner.service == s || slices.ContainsFunc(c.losers, func(l claim) bool { return l.service == s }))
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

func (p *Planner) withdraw(s *service) {
	s.eachFrontend(func(c claim) {
		list := p.claims[c.frontend.Key]
		switch {
		case list.winner.service != s:
			list.losers = slices.DeleteFunc(list.losers, func(d claim) bool { return d.service == s })
		case len(list.losers) == 0:
			delete(p.claims, c.frontend.Key)
			return
		default:
			list.winner = list.losers[0]
			list.losers = slices.Delete(list.losers, 0, 1)
		}
		p.losers--
		p.claims[c.frontend.Key] = list
	})
}

func (p *Planner) claim(s *service) {
	s.eachFrontend(func(c claim) {
		list, claimed := p.claims[c.frontend.Key]
		if !claimed {
			p.claims[c.frontend.Key] = contenders{winner: c}
			return
		}
		loser := c
		if c.compare(&list.winner) < 0 {
			loser, list.winner = list.winner, c
		}
		at, _ := slices.BinarySearchFunc(list.losers, loser, func(a, b claim) int { return a.compare(&b) })
		list.losers = slices.Insert(list.losers, at, loser)
		p.losers++
		p.claims[c.frontend.Key] = list
	})
}

// ConflictsOf returns the keys of the named Service that another one claims too, with the loser of each. It is to be asked
// when all Services are up to date: an address that goes from one to another is claimed by both in between.
func (p *Planner) ConflictsOf(name types.NamespacedName) []Conflict {
	var out []Conflict
	p.services[name].eachFrontend(func(c claim) {
		list := p.claims[c.frontend.Key]
		for _, loser := range list.losers {
			out = append(out, Conflict{
				Key: c.frontend.Key, Kind: loser.frontend.Kind, Winner: list.winner.port.name, Loser: loser.port.name,
			})
		}
	})
	return out
}

// change replaces the elements of one claim to a key by those of another; either may be none.
func (p *Planner) change(was, is claim) {
	if was.frontend == is.frontend {
		return
	}
	drops, uses := p.usesRoom[0][:0], p.usesRoom[1][:0]
	var l *layout
	if was.service != nil {
		l = p.layouts[was.port.family]
		l.head(was.port, was.frontend, func(e nft.Element) { p.remove(&e) })
		drops = l.uses(drops, was.port, was.frontend)
	}
	if is.service != nil {
		l = p.layouts[is.port.family]
		l.head(is.port, is.frontend, func(e nft.Element) { p.put(&e) })
		uses = l.uses(uses, is.port, is.frontend)
	}
	for _, u := range uses {
		p.use(u)
	}
	for _, u := range drops {
		p.drop(u)
	}
	p.usesRoom = [2][]use{drops, uses}
	for ls := range lists {
		p.changeSlots(l, &was, &is, ls)
	}
}

func (p *Planner) changeSlots(l *layout, was, is *claim, ls list) {
	old, now := &p.slots[0], &p.slots[1]
	old.fill(l, was, ls)
	now.fill(l, is, ls)
	common := min(old.n, now.n)
	if a := is.arrangement(ls); a != nil && is.follows(was) && old.ids == now.ids && common > 0 {
		for _, r := range a.undo {
			if r.slot < common && r.endpoint != a.endpoints[r.slot] {
				p.remove(old.at(r.slot, r.endpoint))
				p.put(now.at(r.slot, a.endpoints[r.slot]))
			}
		}
		for i := common; i < old.n; i++ {
			p.remove(old.at(i, a.was(i)))
		}
		for i := common; i < now.n; i++ {
			p.put(now.at(i, a.endpoints[i]))
		}
		return
	}
	p.changeAllSlots(old, now)
}

func (p *Planner) changeAllSlots(old, now *slots) {
	before, after := old.endpoints(), now.endpoints()
	for i := range max(old.n, now.n) {
		if i < old.n && i < now.n && old.ids == now.ids && before[i] == after[i] {
			continue
		}
		if i < old.n {
			p.remove(old.at(i, before[i]))
		}
		if i < now.n {
			p.put(now.at(i, after[i]))
		}
	}
}

// arrangement is that of a claim's list, if it can be changed in place.
func (c *claim) arrangement(ls list) *arrangement {
	if c.service == nil {
		return nil
	}
	return c.port.arranged[ls]
}

// follows tells whether a claim is the later form of another, so that its arrangements were made of the other's.
func (c *claim) follows(d *claim) bool {
	return c.service != nil && d.service != nil && c.service.name == d.service.name && c.port.id() == d.port.id()
}
