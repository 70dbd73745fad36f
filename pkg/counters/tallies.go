package counters

import (
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// tallies are sums for everything that has counted anything.
type tallies struct {
	total tally
	// frontends have the tallies of frontends, and of cluster IPs for ports that nobody has.
	frontends map[frontend]*entry
	// ports have those of service ports, by the comments of their elements; they outlive a frontend that goes.
	ports map[string]*entry
	// kept is how many entries were left when some were last forgotten.
	kept int
}

// fewEntries aren't worth a reading of their own.
const fewEntries = 1024

// crowded reports whether there are so many entries that those about nothing any more are to be forgotten, whether or not anybody reads
// the metrics: twice as many as were left the last time.
func (t *tallies) crowded() bool { return t.entries() > 2*t.kept+fewEntries }

func (t *tallies) entries() int { return len(t.frontends) + len(t.ports) }

// frontend is how elements show a frontend; for an address without a port it is the address alone.
type frontend struct {
	family nft.Family
	key    nft.Value
}

// entry is a tally, with its service port, and the last reading that has seen something of it.
type entry struct {
	tally
	owner string
	round int
}

// tally has a number for each meaning, and the most that source ranges were ever seen to have dropped: that is the difference of
// two numbers which aren't read at the same time.
type tally struct {
	by      [plan.Meanings]uint64
	dropped uint64
}

func newTallies() tallies {
	return tallies{frontends: map[frontend]*entry{}, ports: map[string]*entry{}}
}

func (t *tally) add(m plan.Meaning, n uint64) { t.by[m] += n }

// settle takes up the present difference. What is examined must have been read before what is allowed.
func (t *tally) settle() {
	if examined, allowed := t.by[plan.Examined], t.by[plan.Allowed]; examined > allowed {
		t.dropped = max(t.dropped, examined-allowed)
	}
}

func (t *tally) counts() Counts {
	return Counts{Connections: t.by[plan.Forwarded] + t.by[plan.Arrived], Refused: [Reasons]uint64{
		NoEndpoints: t.by[plan.NoEndpoints], NoLocalEndpoints: t.by[plan.NoLocalEndpoints], SourceRange: t.dropped,
		UnusedPort: t.by[plan.UnusedPort], UnusedAddress: t.by[plan.UnusedAddress],
	}}
}

// attribute adds what an element has counted to all that it is about.
func (t *tallies) attribute(meanings *plan.Counters, e *nft.Counted, n uint64) {
	m, also := meanings.Meaning(&e.Element)
	for _, m := range []plan.Meaning{m, also} {
		if m == plan.Silent {
			continue
		}
		if m != plan.Arrived {
			t.total.add(m, n)
		}
		if m == plan.UnusedAddress {
			continue
		}
		owner := e.Comment
		if !meanings.OfPort(e.Set) {
			f := t.frontend(frontend{e.Set.Family, e.Key}, owner)
			f.add(m, n)
			owner = f.owner
		}
		if owner != "" && m != plan.Arrived {
			t.port(owner).add(m, n)
		}
	}
}

// frontend returns the entry of a frontend, whose service port is the present one.
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

// mark notes that a reading has seen an element, so that what it is about is kept.
func (t *tallies) mark(meanings *plan.Counters, e *nft.Counted, round int) {
	if f := t.frontends[frontend{e.Set.Family, e.Key}]; f != nil && !meanings.OfPort(e.Set) {
		f.round = round
	}
	if e.Comment == "" {
		return
	}
	if p := t.ports[e.Comment]; p != nil {
		p.round = round
	}
	if !meanings.OfPort(e.Set) {
		t.claimAddress(e, round)
	}
}

// claimAddress finds the Service that an address belongs to of which unused ports were asked for: elements of addresses don't say it,
// and go when all is written anew.
func (t *tallies) claimAddress(e *nft.Counted, round int) {
	address := frontend{e.Set.Family, e.Key.Cut(0, e.Set.Family.AddrLen())}
	f := t.frontends[address]
	if f == nil || len(e.Key.Bytes()) <= len(address.key.Bytes()) {
		return
	}
	service, _, _ := strings.Cut(e.Comment, ":")
	p := t.port(service)
	p.round, f.round = round, round
	if f.owner == "" {
		p.add(plan.UnusedPort, f.by[plan.UnusedPort])
	}
	f.owner = service
}

// settle takes up what source ranges have dropped.
func (t *tallies) settle() {
	t.total.settle()
	for _, e := range t.frontends {
		e.settle()
	}
	for _, e := range t.ports {
		e.settle()
	}
}

// forget drops what is about nothing any more, which a reading of everything has not seen.
func (t *tallies) forget(round int) {
	for k, e := range t.frontends {
		if e.round < round {
			delete(t.frontends, k)
		}
	}
	for k, e := range t.ports {
		if e.round < round {
			delete(t.ports, k)
		}
	}
	t.kept = t.entries()
}

// Port is what the frontends of a service port have counted together.
type Port struct {
	// Namespace and Service name it, with Port the name of the port; "" where there is one without a name, and for what belongs
	// to no port of the Service. Names that are longer together than 127 bytes are cut at the end.
	Namespace, Service, Port string
	Counts
}

// Total returns what all Services have counted together, those that have gone included.
func (c *Counters) Total() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total.counts()
}

// Ports returns the service ports that have counted anything, in no order.
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

// names splits the comment of a service port's elements.
func names(owner string) (namespace, service, port string) {
	namespace, rest, _ := strings.Cut(owner, "/")
	service, port, _ = strings.Cut(rest, ":")
	return namespace, service, port
}

// Connections returns what each of the frontends has counted; it reads the kernel's counters before, for which it waits no longer than
// patience, unless they were read lately. An error says that the numbers may be old; they are there nevertheless.
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
		}
	}
	return list, err
}
