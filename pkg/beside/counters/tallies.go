package counters

import (
	"maps"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// tallies are the counts of all Services together, of frontends, and of service ports.
type tallies struct {
	meanings *plan.Counters

	total tally
	// frontends are the tallies of frontends, and of unused ports on cluster IPs.
	frontends map[frontend]*entry
	// ports are the tallies of service ports, by the comments of their elements. They outlive deleted frontends.
	ports map[string]*entry
}

// fewEntries is a number of new entries that is too small to justify a reading.
const fewEntries = 1024

func (t *tallies) entries() int { return len(t.frontends) + len(t.ports) }

// frontend identifies a frontend by the family and key of its elements. The key of an address with requests to unused
// ports, or of an unused address, is the address alone.
type frontend struct {
	family inet.Family
	key    nft.Value
}

// entry is a tally, the name of its service port, and the last reading that has seen one of its elements.
type entry struct {
	tally
	owner string
	round int
	// local is set for a service port with connections to its frontends with the external policy Local, by IP family.
	local [2]*local
}

// tally has a count for each meaning. dropped is the number of packets that source ranges have dropped. It is the
// largest known difference of Examined and Allowed: these are not read at the same time, so a later difference may be
// too small.
type tally struct {
	by      [plan.Meanings]uint64
	dropped uint64
	// forwarded is the largest known number of forwarded connections. Connections at the maximum are also among
	// Forwarded, which is read earlier: a later difference may be too small.
	forwarded uint64
}

func newTallies(meanings *plan.Counters) tallies {
	return tallies{meanings: meanings, frontends: map[frontend]*entry{}, ports: map[string]*entry{}}
}

func (t *tally) add(m outcome.Code, n uint64) { t.by[m] += n }

// settle updates dropped. Examined must have been read before Allowed, so that the difference is never too large.
func (t *tally) settle() {
	if examined, allowed := t.by[plan.Examined], t.by[plan.Allowed]; examined > allowed {
		t.dropped = max(t.dropped, examined-allowed)
	}
}

func (t *tally) counts() Counts {
	if all, over := t.by[outcome.Forwarded], t.by[outcome.AtMaximum]; all > over {
		t.forwarded = max(t.forwarded, all-over)
	}
	c := Counts(t.by[:outcome.Codes])
	c[outcome.Forwarded], c[outcome.SourceRange] = t.forwarded, t.dropped
	return c
}

// attribute adds n, the increase of an element's count, to all tallies of the element.
func (t *tallies) attribute(e *nft.Found, n uint64) {
	m, also := t.meanings.Meaning(&e.Element)
	for _, m := range []outcome.Code{m, also} {
		if m == outcome.None {
			continue
		}
		if m != plan.Arrived {
			t.total.add(m, n)
		}
		if m == outcome.UnusedAddress {
			continue
		}
		family, owner := e.Set.Family, e.Comment
		if t.meanings.OfPort(e.Set) {
			t.port(owner).outcome(family, m, n)
		} else {
			f := t.frontend(frontendOf(e), owner)
			if owner = f.owner; m == plan.Arrived {
				t.port(owner).arrive(family, f, n)
			} else {
				f.add(m, n)
			}
		}
		if owner != "" && m != plan.Arrived {
			t.port(owner).add(m, n)
		}
	}
}

func frontendOf(e *nft.Found) (f frontend) {
	f.family, f.key = plan.ElementID(&e.Element)
	return f
}

// frontend returns the entry of a frontend and sets its service port.
func (t *tallies) frontend(f frontend, owner string) *entry {
	e := t.frontends[f]
	if e == nil {
		e = &entry{}
		t.frontends[f] = e
	}
	if owner != "" {
		e.owner = owner
	}
	return e
}

func (t *tallies) port(owner string) *entry {
	e := t.ports[owner]
	if e == nil {
		e = &entry{owner: owner}
		t.ports[owner] = e
	}
	return e
}

// mark records that a reading has seen an element, so that forget keeps its entries.
func (t *tallies) mark(e *nft.Found, round int) {
	if f := t.frontends[frontendOf(e)]; f != nil && !t.meanings.OfPort(e.Set) {
		f.round = round
	}
	if e.Comment == "" {
		return
	}
	if p := t.ports[e.Comment]; p != nil {
		p.round = round
	}
	if !t.meanings.OfPort(e.Set) {
		t.claimAddress(e, round)
	}
}

// claimAddress assigns an address with requests to unused ports to a Service: e is an element of a frontend at this
// address, which names the Service. The elements for addresses do not name it, and a full sync deletes them.
func (t *tallies) claimAddress(e *nft.Found, round int) {
	address := frontend{e.Set.Family, e.Key.Cut(0, e.Set.Family.AddrLen())}
	f := t.frontends[address]
	if f == nil || len(e.Key.Bytes()) <= len(address.key.Bytes()) {
		return
	}
	service, _, _ := strings.Cut(e.Comment, ":")
	p := t.port(service)
	p.round, f.round = round, round
	if f.owner == "" {
		p.add(outcome.UnusedPort, f.by[outcome.UnusedPort])
	}
	f.owner = service
}

// split adds outcomes of service ports to their frontends. See [local].
func (t *tallies) split() {
	for _, e := range t.ports {
		for _, l := range e.local {
			l.split()
		}
	}
}

// settle updates the dropped packets of all tallies.
func (t *tallies) settle() {
	t.total.settle()
	for _, e := range t.frontends {
		e.settle()
	}
	for _, e := range t.ports {
		e.settle()
	}
}

// forget removes the entries whose elements no reading since the given round has seen.
func (t *tallies) forget(round int) {
	maps.DeleteFunc(t.frontends, func(_ frontend, e *entry) bool { return e.round < round })
	maps.DeleteFunc(t.ports, func(_ string, e *entry) bool { return e.round < round })
}

// Port holds the counts of all frontends of a service port together.
type Port struct {
	// Namespace, Service and Port name it. Port is "" for an unnamed port, and for counts that belong to no port of
	// the Service. If the three are longer than 127 bytes together, the end is truncated.
	Namespace, Service, Port string
	Counts
}

// Total returns the counts of all Services together, including deleted ones.
func (c *Counters) Total() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total.counts()
}

// Ports returns the service ports with a count, unsorted.
func (c *Counters) Ports() []Port {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Port, 0, len(c.ports))
	for owner, e := range c.ports {
		p := Port{Counts: e.counts()}
		p.Namespace, p.Service, p.Port = names(owner)
		list = append(list, p)
	}
	return list
}

// names splits the comment of a service port's elements, such as default/web:http.
func names(owner string) (namespace, service, port string) {
	namespace, rest, _ := strings.Cut(owner, "/")
	service, port, _ = strings.Cut(rest, ":")
	return namespace, service, port
}

// Connections returns the counts of the given frontends, in their order. The count of [outcome.AtMaximum] is that
// of the service port. If the last reading is not recent, Connections waits for a new one, but no longer than
// patience. After an error, the returned counts may be old.
func (c *Counters) Connections(frontends []model.Key, patience time.Duration) ([]Counts, error) {
	err := c.Await(patience)
	list := make([]Counts, len(frontends))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range frontends {
		var at frontend
		at.family, at.key = plan.FrontendID(f)
		if e := c.frontends[at]; e != nil {
			list[i] = e.counts()
			if p := c.ports[e.owner]; p != nil {
				list[i][outcome.AtMaximum] = p.by[outcome.AtMaximum]
			}
		}
	}
	return list, err
}
