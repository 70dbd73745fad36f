package counters

import (
	"cmp"
	"maps"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// The zones of endpoints in the API that have none, and of all zones of a Service above mostZones. The authors of
// EndpointSlices choose the names of zones, so the number of zones is limited.
const (
	unknownZone = "unknown"
	otherZones  = "other"
	mostZones   = 16
)

// ZonesOf returns the zones of the endpoints of a Service, by address. Counters calls it from the goroutine of a
// reading.
type ZonesOf func(service types.NamespacedName) map[netip.Addr]string

// endpoints count connections to endpoints by zone. A nil pointer counts nothing.
//
// The elements of endpoints have no comments, which would cost the kernel memory for each endpoint. They have the
// number of their service port. The elements of its frontends have this number and the name of the service port. A
// reading sees the elements of frontends first.
type endpoints struct {
	meanings *plan.Counters
	zonesOf  ZonesOf
	// owners are the Services by the numbers of their ports.
	owners map[plan.Number]*owned
	// known are the known endpoints. Those in unowned have no known Service, because it is newer than the last reading.
	known   map[endpoint]*endpointEntry
	unowned map[plan.Number]map[netip.Addr]uint64
	// unsettled are the endpoints whose zones must be read.
	unsettled map[endpoint]struct{}
	// waiting is true if an endpoint has connections that are not counted for a zone.
	waiting bool
	zones   map[string]*zones
}

// owned is the Service of a number, such as default/web, and the last reading that has seen it.
type owned struct {
	service string
	round   int
}

// endpoint is an endpoint of a Service.
type endpoint struct {
	service string
	addr    netip.Addr
}

type endpointEntry struct {
	// unplaced is the number of connections that are not counted for a zone yet.
	unplaced uint64
	// zone is "" before the first reading of the zone. If placed is false, another pod may have the address.
	zone   string
	placed bool
	round  int
}

// zones are the counts of the zones of a Service, by their labels.
type zones struct {
	by    map[string]uint64
	round int
}

func newEndpoints(meanings *plan.Counters) *endpoints {
	return &endpoints{
		meanings: meanings, owners: map[plan.Number]*owned{}, known: map[endpoint]*endpointEntry{},
		unowned:   map[plan.Number]map[netip.Addr]uint64{},
		unsettled: map[endpoint]struct{}{}, zones: map[string]*zones{},
	}
}

// SetZones sets the source of the zones of endpoints. Call it before the first reading. Without it, all zones are
// unknown.
func (c *Counters) SetZones(of ZonesOf) {
	if c.endpoints != nil {
		c.endpoints.zonesOf = of
	}
}

// of reports whether an element counts the connections of an endpoint.
func (s *endpoints) of(e *nft.Found) bool {
	if s == nil {
		return false
	}
	m, _ := s.meanings.Meaning(&e.Element)
	return m == plan.ToEndpoint
}

// learnAll learns the Services of numbers from elements of frontends.
func (s *endpoints) learnAll(list []nft.Found, round int) {
	if s == nil {
		return
	}
	for i := range list {
		e := &list[i]
		number, ok := s.meanings.Owned(&e.Element)
		if !ok {
			continue
		}
		o := s.owners[number]
		if o == nil {
			o = &owned{}
			s.owners[number] = o
		}
		o.service, _, _ = strings.Cut(e.Comment, ":")
		o.round = round
		if z := s.zones[o.service]; z != nil {
			z.round = round
		}
		for addr, n := range s.unowned[number] {
			s.count(endpoint{o.service, addr}, n, round)
		}
		delete(s.unowned, number)
	}
}

// add adds n connections to the endpoint of an element. If first is true, the element may be new, and another pod may
// have the address.
func (s *endpoints) add(e *nft.Found, n uint64, first bool) {
	number, addr := s.meanings.Endpoint(&e.Element)
	if o := s.owners[number]; o != nil {
		if first {
			s.doubt(e)
		}
		s.count(endpoint{o.service, addr}, n, o.round)
		return
	}
	if s.unowned[number] == nil {
		s.unowned[number] = map[netip.Addr]uint64{}
	}
	s.unowned[number][addr] += n
	s.waiting = true
}

func (s *endpoints) count(at endpoint, n uint64, round int) {
	e := s.known[at]
	if e == nil {
		e = &endpointEntry{round: round}
		s.known[at] = e
		s.unsettled[at] = struct{}{}
	}
	e.unplaced += n
	if e.placed {
		s.toZone(at, e)
	} else {
		s.waiting = true
	}
}

// toZone adds the unplaced connections of an endpoint to its zone.
func (s *endpoints) toZone(at endpoint, e *endpointEntry) {
	z := s.zones[at.service]
	if z == nil {
		z = &zones{by: map[string]uint64{}, round: e.round}
		s.zones[at.service] = z
	}
	zone := e.zone
	if _, known := z.by[zone]; !known && len(z.by) >= mostZones {
		zone = otherZones
	}
	z.by[zone] += e.unplaced
	e.unplaced = 0
}

// doubt makes the next reading read the zone of an endpoint that has lost an element: another pod may get its address.
func (s *endpoints) doubt(e *nft.Found) {
	if !s.of(e) {
		return
	}
	if at, known := s.find(e); known != nil {
		known.placed = false
		s.unsettled[at] = struct{}{}
	}
}

// find returns the endpoint of an element, and its entry, or nil if it is not known.
func (s *endpoints) find(e *nft.Found) (at endpoint, known *endpointEntry) {
	number, addr := s.meanings.Endpoint(&e.Element)
	if o := s.owners[number]; o != nil {
		at = endpoint{o.service, addr}
	}
	return at, s.known[at]
}

// mark records that a reading has seen an element.
func (s *endpoints) mark(e *nft.Found, round int) {
	if _, known := s.find(e); known != nil {
		known.round = round
	}
}

// entries returns the number of entries that forget may remove.
func (s *endpoints) entries() (n int) {
	if s == nil {
		return 0
	}
	return len(s.owners) + len(s.known) + len(s.unowned) + len(s.zones)
}

// unplaced reports whether connections are not counted for a zone yet: their endpoint may soon leave the slices.
func (s *endpoints) unplaced() bool { return s != nil && s.waiting }

// forget removes the entries whose elements no reading since the given round has seen.
func (s *endpoints) forget(round int) {
	if s == nil {
		return
	}
	for at, e := range s.known {
		if e.round < round {
			delete(s.known, at)
			delete(s.unsettled, at)
		}
	}
	maps.DeleteFunc(s.owners, func(_ plan.Number, o *owned) bool { return o.round < round })
	maps.DeleteFunc(s.zones, func(_ string, z *zones) bool { return z.round < round })
	clear(s.unowned) // no reading has seen service ports with these numbers
}

// placeEndpoints reads the zones of new endpoints, and of those in doubt. It does not hold the lock meanwhile.
func (c *Counters) placeEndpoints() {
	s := c.endpoints
	if s == nil {
		return
	}
	c.mu.Lock()
	services := map[string][]endpoint{}
	for at := range s.unsettled {
		services[at.service] = append(services[at.service], at)
	}
	clear(s.unsettled)
	s.waiting = false
	c.mu.Unlock()
	for service, list := range services {
		var found map[netip.Addr]string
		if namespace, name, _ := strings.Cut(service, "/"); s.zonesOf != nil {
			found = s.zonesOf(types.NamespacedName{Namespace: namespace, Name: name})
		}
		c.mu.Lock()
		for _, at := range list {
			if e := s.known[at]; e != nil {
				s.settle(at, e, found)
			}
		}
		c.mu.Unlock()
	}
}

// settle sets the zone of an endpoint. An endpoint that is no longer in a slice keeps its last zone.
func (s *endpoints) settle(at endpoint, e *endpointEntry, found map[netip.Addr]string) {
	if zone, listed := found[at.addr]; listed || e.zone == "" {
		e.zone = cmp.Or(zone, unknownZone)
	}
	e.placed = true
	if e.unplaced > 0 {
		s.toZone(at, e)
	}
}

// Zone is the number of connections to the endpoints of a Service in one zone.
type Zone struct {
	Namespace, Service, Zone string
	Connections              uint64
}

// Zones returns the zones with connections, unsorted. A Service has at most 17. It returns none unless the elements of
// endpoints have counters.
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
