package conntrack

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Flow is one entry of the kernel's table, as far as the rules look at it.
type Flow struct {
	Protocol model.Protocol
	// Zone is the conntrack zone of either direction; 0 is the one that all traffic is in unless somebody says otherwise.
	Zone uint16
	// ID is the kernel's number of the entry.
	ID uint32
	// Source and Destination are those of the packet that opened the flow, before any translation.
	Source, Destination netip.AddrPort
	// Server is where replies come from: the destination after translation.
	Server netip.AddrPort
	// Replied says that there has been a packet in the other direction.
	Replied bool
	// DNAT is the kernel's own mark (IPS_DST_NAT). NAT by ipvs doesn't set it.
	DNAT bool
}

// translated reports whether packets go elsewhere than where the client sends them.
func (f *Flow) translated() bool { return f.DNAT || f.Server != f.Destination }

// Desired says what is true of some frontends: of those that have changed since the last pass, or of all. Flows to any
// others are left alone. It must not be changed once a [Reconciler] has it.
type Desired struct {
	// Undnated asks for entries without DNAT, of every protocol: to be set after the first sync and after the rules were
	// missing for a while, together with all frontends; and with all node ports after an address was added on which they are
	// served. A flow that began without rules is never looked at again, even if the rules are there: UDP while the client
	// sends, TCP while it repeats its SYN. See kubernetes issue 126468.
	Undnated bool

	frontends map[model.Key]frontend
	// nodes are sorted.
	nodes [2][]netip.Addr
	// count, others and gone count frontends: by family, those of other protocols than UDP, and those that are gone.
	count        [2]int
	others, gone int
}

type frontend struct {
	// endpoints are those of UDP.
	endpoints []netip.AddrPort
	// allowed, if not nil, are the only sources that may send.
	allowed []model.AddrRange
	gone    bool
}

// serves reports whether a UDP flow may go on to that endpoint.
func (f *frontend) serves(e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(f.endpoints, e, netip.AddrPort.Compare)
	return found
}

// allows reports whether a source may open a flow.
func (f *frontend) allows(source netip.Addr) bool {
	if f.allowed == nil {
		return true
	}
	// The range that begins last of those that don't begin behind the source is the only one that may contain it.
	after := sort.Search(len(f.allowed), func(i int) bool { return source.Less(f.allowed[i].First) })
	return after > 0 && f.allowed[after-1].Contains(source)
}

// Frontend says to which endpoints flows of a frontend may go on: all that are ready or serving, terminating ones
// included, whatever traffic policy and topology say, because what has begun may end where it is. They may be none.
// The list has to be sorted; it is kept and must never be changed, so that it can be shared by all frontends of a service
// port. It isn't needed for other protocols than UDP.
//
// kube-proxy (pkg/proxy/conntrack/cleanup.go) takes serving endpoints only, and so cuts off those that are ready without
// serving, which spec.publishNotReadyAddresses brings about.
func (d *Desired) Frontend(k model.Key, endpoints []netip.AddrPort) {
	d.set(k, frontend{endpoints: endpoints})
}

// Restrict says, after [Desired.Frontend], that only these sources may open flows to a frontend (loadBalancerSourceRanges); nil
// allows all. The ranges have to be sorted and must not overlap. The list is kept and must never be changed.
func (d *Desired) Restrict(k model.Key, allowed []model.AddrRange) {
	f := d.frontends[k]
	f.allowed = allowed
	d.set(k, f)
}

// Gone says that a frontend existed and doesn't any more: its Service was deleted, or the Service lost that port, node
// port or address. It is needed once only, in the pass that follows.
func (d *Desired) Gone(k model.Key) {
	d.set(k, frontend{gone: true})
}

func (d *Desired) set(k model.Key, f frontend) {
	if d.frontends == nil {
		d.frontends = map[model.Key]frontend{}
	}
	old, known := d.frontends[k]
	if !known {
		d.tally(k, 1)
	}
	if old.gone {
		d.gone--
	}
	if f.gone {
		d.gone++
	}
	d.frontends[k] = f
}

func (d *Desired) tally(k model.Key, n int) {
	d.count[k.Family] += n
	if k.Protocol != model.UDP {
		d.others += n
	}
}

// NodeAddresses says on which addresses of this node node ports of a family are served; sorted, kept, and never to be
// changed. Flows to other addresses are none of a node port's, whatever their port. (kube-proxy takes any address.)
func (d *Desired) NodeAddresses(f model.Family, addrs []netip.Addr) {
	d.nodes[f] = addrs
}

// onlyUDP reports whether flows of other protocols needn't be looked at.
func (d *Desired) onlyUDP() bool { return !d.Undnated && d.others == 0 }

// merge takes up what became true after what d says.
func (d *Desired) merge(later *Desired) {
	d.Undnated = d.Undnated || later.Undnated
	for k, f := range later.frontends {
		d.set(k, f)
	}
	for f, addrs := range later.nodes {
		if addrs != nil {
			d.nodes[f] = addrs
		}
	}
}

// forgetGone leaves out the frontends that are gone.
func (d *Desired) forgetGone() {
	for k, f := range d.frontends {
		if f.gone {
			delete(d.frontends, k)
			d.tally(k, -1)
		}
	}
	d.gone = 0
}

// Stale reports whether an entry has to go, so that the next packet of its client meets the rules anew. It costs one look-up
// by destination, one more if that is an address of this node, and one by source if that matters.
//
//	UDP flow to a frontend                        stale if
//	nobody has answered, source not allowed       always (in zone 0, if not translated)
//	translated to an endpoint in the list         never
//	translated to anything else                   always; the service may have been scaled to zero: then the rules refuse
//	not translated, endpoints in the list         always (in zone 0)
//	not translated, no endpoints                  nobody has answered (in zone 0)
//	translated, frontend gone                     always
//	not translated, frontend gone                 never
//
// A flow that was answered goes on though its source isn't allowed any more, as with kube-proxy: its rules drop packets in state new,
// which all packets of a flow are until there is an answer.
//
// A flow to a frontend without endpoints that somebody does answer, such as a process on a node that owns the address, works
// as it is; one that nobody answers had better be refused. kube-proxy leaves both, and those of deleted Services too.
//
// Of other protocols only flows that nobody has answered are stale: those whose source isn't allowed, and with Undnated those that
// aren't translated. No connection that has come about is ever cut. Entries without translation in other zones than 0 are left
// alone, because it is their purpose: the switch of a network plugin sees the same packet in its own zone before or after the
// rules do.
func (d *Desired) Stale(f *Flow) bool {
	if f.Protocol != model.UDP && f.Replied {
		return false
	}
	to, known := d.find(f.Destination, f.Protocol)
	switch {
	case !known:
		return false
	case to.gone:
		return f.Protocol == model.UDP && f.translated()
	case !f.Replied && !to.allows(f.Source.Addr()):
		return f.translated() || f.Zone == 0
	case f.Protocol != model.UDP:
		return d.Undnated && !f.translated() && f.Zone == 0
	case to.serves(f.Server):
		return false
	case f.translated():
		return true
	case f.Zone != 0:
		return false
	}
	return !f.Replied || len(to.endpoints) > 0
}

// welcomes reports whether a flow goes where packets to its frontend go.
func (d *Desired) welcomes(f *Flow) bool {
	to, known := d.find(f.Destination, f.Protocol)
	switch {
	case !known, to.gone, !f.Replied && !to.allows(f.Source.Addr()):
		return false
	case f.Protocol != model.UDP:
		return f.translated()
	}
	return to.serves(f.Server)
}

// find returns the frontend at a destination.
func (d *Desired) find(at netip.AddrPort, p model.Protocol) (frontend, bool) {
	addr := at.Addr()
	k := model.Key{Addr: addr, Port: at.Port(), Protocol: p, Family: model.FamilyOf(addr)}
	if f, known := d.frontends[k]; known {
		return f, true
	}
	if _, ours := slices.BinarySearchFunc(d.nodes[k.Family], addr, netip.Addr.Compare); !ours {
		return frontend{}, false
	}
	k.Addr = netip.Addr{}
	f, known := d.frontends[k]
	return f, known
}
