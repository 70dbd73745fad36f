package counters

import (
	"net/netip"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// The zones of endpoints in the API that have none, and of all zones of a Service above mostZones. The authors of EndpointSlices choose the names
// of zones, so the number of zones is limited.
const (
	unknownZone = "unknown"
	otherZones  = "other"
	mostZones   = 16
)

// Places returns the places of the endpoints of a Service, by address. Counters calls it from the goroutine of a reading.
type Places func(service types.NamespacedName) map[netip.Addr]model.Place

// endpoints are the counts of endpoints and zones. A nil pointer counts nothing.
//
// The elements of endpoints have no comments, which would cost the kernel memory for each endpoint. They have the number of their service port.
// The elements of its frontends have this number and the name of the service port. A reading sees the elements of frontends first.
type endpoints struct {
	places Places
	// owners are the service ports by number.
	owners map[plan.Number]*owned
	// counts are the counts of endpoints. Those of endpoints in unowned have no known service port, because it is newer than the last reading.
	counts  map[endpoint]*endpointEntry
	unowned map[plan.Number]map[netip.AddrPort]uint64
	// unsettled are the endpoints whose places must be read.
	unsettled map[endpoint]struct{}
	// waiting is true if an endpoint has connections that are not counted for a zone.
	waiting bool
	zones   map[string]*zones
}

// owned is the service port of a number, by the comment of its elements, and the last reading that has seen it.
type owned struct {
	name  string
	round int
}

// endpoint is an endpoint of a service port.
type endpoint struct {
	owner string
	to    netip.AddrPort
}

type endpointEntry struct {
	connections uint64
	// unplaced is the number of connections that are not counted for a zone yet.
	unplaced uint64
	place    unique.Handle[model.Place]
	placed   bool
	round    int
}

// zones are the counts of the zones of a Service, by their labels.
type zones struct {
	by    map[string]uint64
	round int
}

func newEndpoints() *endpoints {
	return &endpoints{
		owners: map[plan.Number]*owned{}, counts: map[endpoint]*endpointEntry{}, unowned: map[plan.Number]map[netip.AddrPort]uint64{},
		unsettled: map[endpoint]struct{}{}, zones: map[string]*zones{},
	}
}

// SetPlaces sets the source of the places of endpoints. Call it before the first reading. Without it, all zones are unknown.
func (c *Counters) SetPlaces(p Places) {
	if c.endpoints != nil {
		c.endpoints.places = p
	}
}

// of reports whether an element counts the connections of an endpoint.
func (s *endpoints) of(meanings *plan.Counters, e *nft.Counted) bool {
	if s == nil {
		return false
	}
	m, _ := meanings.Meaning(&e.Element)
	return m == plan.ToEndpoint
}

// learnAll learns the service ports of numbers from elements of frontends.
func (s *endpoints) learnAll(meanings *plan.Counters, list []nft.Counted, round int) {
	if s == nil {
		return
	}
	for i := range list {
		e := &list[i]
		number, ok := meanings.Owned(&e.Element)
		if !ok {
			continue
		}
		o := s.owners[number]
		if o == nil {
			o = &owned{}
			s.owners[number] = o
		}
		o.name, o.round = e.Comment, round
		if z := s.zones[serviceOf(e.Comment)]; z != nil {
			z.round = round
		}
		for to, n := range s.unowned[number] {
			s.count(endpoint{o.name, to}, n, round)
		}
		delete(s.unowned, number)
	}
}

// add adds n connections to the endpoint of an element. If first is true, the element may be new, and another pod may have the address.
func (s *endpoints) add(meanings *plan.Counters, e *nft.Counted, n uint64, first bool) {
	number, to := meanings.Endpoint(&e.Element)
	if o := s.owners[number]; o != nil {
		if first {
			s.doubt(meanings, e)
		}
		s.count(endpoint{o.name, to}, n, o.round)
		return
	}
	if s.unowned[number] == nil {
		s.unowned[number] = map[netip.AddrPort]uint64{}
	}
	s.unowned[number][to] += n
	s.waiting = true
}

func (s *endpoints) count(at endpoint, n uint64, round int) {
	e := s.counts[at]
	if e == nil {
		e = &endpointEntry{round: round}
		s.counts[at] = e
		s.unsettled[at] = struct{}{}
	}
	e.connections += n
	e.unplaced += n
	if e.placed {
		s.toZone(at, e)
	} else {
		s.waiting = true
	}
}

// toZone adds the unplaced connections of an endpoint to its zone.
func (s *endpoints) toZone(at endpoint, e *endpointEntry) {
	service := serviceOf(at.owner)
	z := s.zones[service]
	if z == nil {
		z = &zones{by: map[string]uint64{}, round: e.round}
		s.zones[service] = z
	}
	zone := e.place.Value().Zone
	if _, known := z.by[zone]; !known && len(z.by) >= mostZones {
		zone = otherZones
	}
	z.by[zone] += e.unplaced
	e.unplaced = 0
}

// doubt makes the next reading read the place of an endpoint that has lost an element: another pod may get its address.
func (s *endpoints) doubt(meanings *plan.Counters, e *nft.Counted) {
	if !s.of(meanings, e) {
		return
	}
	number, to := meanings.Endpoint(&e.Element)
	if o := s.owners[number]; o != nil {
		at := endpoint{o.name, to}
		if e := s.counts[at]; e != nil {
			e.placed = false
			s.unsettled[at] = struct{}{}
		}
	}
}

// mark records that a reading has seen an element.
func (s *endpoints) mark(meanings *plan.Counters, e *nft.Counted, round int) {
	number, to := meanings.Endpoint(&e.Element)
	if o := s.owners[number]; o != nil {
		if e := s.counts[endpoint{o.name, to}]; e != nil {
			e.round = round
		}
	}
}

// entries returns the number of entries that forget may remove.
func (s *endpoints) entries() (n int) {
	if s == nil {
		return 0
	}
	return len(s.owners) + len(s.counts) + len(s.unowned) + len(s.zones)
}

// unplaced reports whether connections are not counted for a zone yet: their endpoint may soon leave the slices.
func (s *endpoints) unplaced() bool { return s != nil && s.waiting }

// forget removes the entries whose elements no reading since the given round has seen.
func (s *endpoints) forget(round int) {
	if s == nil {
		return
	}
	for at, e := range s.counts {
		if e.round < round {
			delete(s.counts, at)
			delete(s.unsettled, at)
		}
	}
	for n, o := range s.owners {
		if o.round < round {
			delete(s.owners, n)
		}
	}
	for service, z := range s.zones {
		if z.round < round {
			delete(s.zones, service)
		}
	}
	clear(s.unowned) // no reading has seen service ports with these numbers
}

// placeEndpoints reads the places of new endpoints, and of those in doubt. It does not hold the lock meanwhile.
func (c *Counters) placeEndpoints() {
	s := c.endpoints
	if s == nil {
		return
	}
	c.mu.Lock()
	services := map[string][]endpoint{}
	for at := range s.unsettled {
		services[serviceOf(at.owner)] = append(services[serviceOf(at.owner)], at)
	}
	clear(s.unsettled)
	s.waiting = false
	c.mu.Unlock()
	for service, list := range services {
		var places map[netip.Addr]model.Place
		if namespace, name, _ := strings.Cut(service, "/"); s.places != nil {
			places = s.places(types.NamespacedName{Namespace: namespace, Name: name})
		}
		c.mu.Lock()
		for _, at := range list {
			if e := s.counts[at]; e != nil {
				s.settle(at, e, places)
			}
		}
		c.mu.Unlock()
	}
}

// settle sets the place of an endpoint. An endpoint that is no longer in a slice keeps its last place.
func (s *endpoints) settle(at endpoint, e *endpointEntry, places map[netip.Addr]model.Place) {
	p, found := places[at.to.Addr()]
	if p.Zone == "" {
		p.Zone = unknownZone
	}
	if found || e.place == (unique.Handle[model.Place]{}) {
		e.place = unique.Make(p)
	}
	e.placed = true
	if e.unplaced > 0 {
		s.toZone(at, e)
	}
}

// serviceOf returns the name of a Service, such as default/web, in the comment of the elements of its ports.
func serviceOf(owner string) string {
	service, _, _ := strings.Cut(owner, ":")
	return service
}

// Zone is the number of connections to the endpoints of a Service in one zone.
type Zone struct {
	Namespace, Service, Zone string
	Connections              uint64
}

// Zones returns the zones with connections, unsorted. A Service has at most 17. It returns none unless the elements of endpoints have counters.
func (c *Counters) Zones() (list []Zone) {
	if c.endpoints == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for service, z := range c.endpoints.zones {
		namespace, name, _ := strings.Cut(service, "/")
		for zone, n := range z.by {
			list = append(list, Zone{namespace, name, zone, n})
		}
	}
	return list
}

// Endpoint is the number of connections to one endpoint of a service port.
type Endpoint struct {
	// Port is "" for an unnamed port.
	Namespace, Service, Port string
	To                       netip.AddrPort
	model.Place
	Connections uint64
}

// Endpoints returns the endpoints with connections of the Services that wanted selects, unsorted.
func (c *Counters) Endpoints(wanted func(types.NamespacedName) bool) (list []Endpoint) {
	if c.endpoints == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, e := range c.endpoints.counts {
		out := Endpoint{To: at.to, Connections: e.connections}
		out.Namespace, out.Service, out.Port = names(at.owner)
		if e.placed && wanted(types.NamespacedName{Namespace: out.Namespace, Name: out.Service}) {
			out.Place = e.place.Value()
			list = append(list, out)
		}
	}
	return list
}

// ToEndpoint returns the number of connections to an endpoint of a service port, as of the last reading. It returns false unless the elements of
// endpoints have counters.
func (c *Counters) ToEndpoint(port model.PortName, to netip.AddrPort) (n uint64, counted bool) {
	if c.endpoints == nil {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.endpoints.counts[endpoint{nft.CutComment(port.String()), to}]; e != nil {
		n = e.connections
	}
	return n, true
}
