package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

const (
	// absence is the time for which an endpoint must be absent from all slices of its Service before its connections
	// are terminated. A controller may delete a slice and write it again.
	absence = 5 * time.Second
	// memory is the time for which a departed endpoint is remembered. A pass over a million connections takes two
	// minutes.
	memory = 10 * time.Minute
	// mostDeparted is the largest number of remembered departures. A departure counts even after the endpoint has
	// returned.
	mostDeparted = 1 << 18
)

// DeparturesConfig has the parts of [Departures].
type DeparturesConfig struct {
	To      *Reconciler
	Planner *plan.Planner
	Now     func() time.Time
	Report  func(model.Problem)
}

// Departures is a listener that requests the termination of TCP connections to endpoints that leave all slices of their
// Service while the loop runs. Endpoints that left before the start, endpoints of a deleted Service, and clients of
// external IPs keep their connections.
type Departures struct {
	DeparturesConfig

	services map[types.NamespacedName]*departing
	// room has the departures in the lists, by namespace.
	room      *room.Room
	addresses [2][]netip.Addr
	// fresh are departures that are not committed yet. waiting are committed departures whose absence is still too
	// short. done are departures whose connections are being terminated. Each list is in the order of time.
	fresh, waiting, done []departure
}

// departing holds the endpoints of a Service and their departures.
type departing struct {
	// listed are the endpoints in the slices, sorted. left has the time of each departure; zero before the commit.
	listed []netip.Addr
	left   map[netip.Addr]time.Time
	// departed are the endpoints whose connections are terminated.
	departed *Departed
	// full is true after a departure exceeded a limit. Only the first such departure is reported.
	full bool
}

// departure is an endpoint that has left. It is valid while the Service's state has the endpoint with the same time.
type departure struct {
	service *departing
	name    types.NamespacedName
	addr    netip.Addr
	at      time.Time
}

func (d *departure) valid() bool {
	at, left := d.service.left[d.addr]
	return left && at.Equal(d.at)
}

// NewDepartures returns a listener.
func NewDepartures(c DeparturesConfig) *Departures {
	return &Departures{DeparturesConfig: c, services: map[types.NamespacedName]*departing{},
		room: room.New(mostDeparted)}
}

// Listener returns the functions that the loop calls.
func (d *Departures) Listener() beside.Listener {
	return beside.Listener{
		Of: beside.Terminating, Service: d.Service, Node: d.Node, Synced: d.Synced, Serve: d.Serve,
	}
}

// Node records the addresses that serve node ports.
func (d *Departures) Node(n *beside.Node) { d.addresses = n.Addresses }

// Service compares the endpoints of a Service with its previous ones.
func (d *Departures) Service(name types.NamespacedName, s *model.Service) {
	of := d.services[name]
	if s == nil || !s.TerminateGone {
		if of != nil {
			of.departed.Clear()
			clear(of.left)
			delete(d.services, name)
		}
		return
	}
	if of == nil {
		of = &departing{listed: s.Listed, left: map[netip.Addr]time.Time{}, departed: &Departed{}}
		d.services[name] = of
	}
	for a := range of.left {
		if _, found := slices.BinarySearchFunc(s.Listed, a, netip.Addr.Compare); found {
			of.forget(a)
		}
	}
	listed := s.Listed // both lists are sorted
	for _, a := range of.listed {
		for len(listed) > 0 && listed[0].Less(a) {
			listed = listed[1:]
		}
		if len(listed) == 0 || listed[0] != a {
			d.leave(name, of, a)
		}
	}
	of.listed = s.Listed
}

// leave records a departure.
func (d *Departures) leave(name types.NamespacedName, of *departing, a netip.Addr) {
	if lacks := d.room.Change(name.Namespace, 0, 1); lacks != room.None {
		if !of.full {
			limit := fmt.Sprintf("%d endpoints of the namespace", d.room.Most())
			if lacks == room.OfNode {
				limit = fmt.Sprintf("%d endpoints of the node", mostDeparted)
			}
			d.Report(model.Problem{Kind: "Service", Name: name, Field: model.TerminateField, Reason: fmt.Sprintf(
				"the limit of %s that have left within %s is reached: TCP connections to further endpoints stay",
				limit, memory)})
		}
		of.full = true
		return
	}
	of.left[a] = time.Time{}
	d.fresh = append(d.fresh, departure{service: of, name: name, addr: a})
}

func (s *departing) forget(a netip.Addr) {
	s.departed.Remove(a)
	delete(s.left, a)
}

// Synced starts the time of absence: from now on, new connections do not reach the endpoints.
func (d *Departures) Synced(s *beside.Sync) {
	if s.Err != nil {
		return
	}
	now := d.Now()
	for _, e := range d.fresh {
		if e.valid() {
			e.at = now
			e.service.left[e.addr] = now
			d.waiting = append(d.waiting, e)
		} else {
			d.room.Change(e.name.Namespace, 1, 0)
		}
	}
	d.fresh = nil
}

// Serve requests the termination of connections to endpoints that have been absent for long enough.
func (d *Departures) Serve(on bool) {
	if !on || len(d.waiting)+len(d.done) == 0 {
		return
	}
	now := d.Now()
	var request *Desired
	changed := map[*departing]bool{}
	terminated := map[model.Key]string{}
	for len(d.waiting) > 0 && now.Sub(d.waiting[0].at) >= absence {
		e := d.waiting[0]
		d.waiting = d.waiting[1:]
		if !e.valid() {
			d.room.Change(e.name.Namespace, 1, 0)
			continue
		}
		e.service.departed.Add(e.addr)
		d.done = append(d.done, e)
		if changed[e.service] {
			continue
		}
		changed[e.service] = true
		if request == nil {
			request = &Desired{}
		}
		request.For(e.name.Namespace)
		d.Planner.Service(e.name).Frontends(inet.TCP, func(k model.Key, allocated bool) {
			if allocated {
				request.Terminate(k, e.service.departed)
				terminated[k] = e.name.Namespace
			}
		})
	}
	for len(d.done) > 0 && now.Sub(d.done[0].at) >= memory {
		e := d.done[0]
		d.done = d.done[1:]
		d.room.Change(e.name.Namespace, 1, 0)
		if e.valid() {
			e.service.forget(e.addr)
		}
	}
	if request == nil {
		return
	}
	d.Planner.Flows().SinglePortsBeside(terminated, request.Exempt)
	request.Nodes, request.Networks = d.addresses, d.Planner.Flows().NodeNetworks
	d.To.Request(request)
}
