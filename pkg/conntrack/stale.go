package conntrack

import (
	"net/netip"
	"slices"

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

// Translated reports whether packets go elsewhere than where the client sends them.
func (f *Flow) Translated() bool { return f.DNAT || f.Server != f.Destination }

// Desired says what is true of some frontends: of those that have changed since the last pass, or of all. Flows to any
// others are left alone. It must not be changed once a [Reconciler] has it.
type Desired struct {
	// Undnated asks for entries without DNAT, of every protocol: to be set after the first sync and after the rules were
	// missing for a while, together with all frontends. A flow that began without rules is never looked at again, even
	// if the rules are there: UDP while the client sends, TCP while it repeats its SYN. See kubernetes issue 126468.
	Undnated bool

	frontends map[model.Key]frontend
	// nodes are sorted.
	nodes [2][]netip.Addr
	// orphans are prefixes whose addresses lead nowhere but to frontends.
	orphans [2][]netip.Prefix
	// count and gone count frontends, by family and those that are gone.
	count [2]int
	gone  int
}

type frontend struct {
	endpoints []netip.AddrPort
	gone      bool
}

// serves reports whether a flow may go on to that endpoint.
func (f *frontend) serves(p model.Protocol, e netip.AddrPort) bool {
	if p != model.UDP {
		return slices.Contains(f.endpoints, e)
	}
	_, found := slices.BinarySearchFunc(f.endpoints, e, netip.AddrPort.Compare)
	return found
}

// Frontend says to which endpoints flows of a frontend may go on: all that are ready or serving, terminating ones
// included, whatever traffic policy and topology say, because what has begun may end where it is. They may be none.
// The list is kept and must never be changed, so that it can be shared by all frontends of a service port. That of a UDP
// frontend has to be sorted. Those of other protocols are needed only with Undnated.
//
// kube-proxy (pkg/proxy/conntrack/cleanup.go) takes serving endpoints only, and so cuts off those that are ready without
// serving, which spec.publishNotReadyAddresses brings about.
func (d *Desired) Frontend(k model.Key, endpoints []netip.AddrPort) {
	d.set(k, frontend{endpoints: endpoints})
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
		d.count[k.Family]++
	}
	if old.gone {
		d.gone--
	}
	if f.gone {
		d.gone++
	}
	d.frontends[k] = f
}

// NodeAddresses says on which addresses of this node node ports of a family are served; sorted, kept, and never to be
// changed. Flows to other addresses are none of a node port's, whatever their port. (kube-proxy takes any address.)
func (d *Desired) NodeAddresses(f model.Family, addrs []netip.Addr) {
	d.nodes[f] = addrs
}

// Orphans gives the prefixes that only addresses of Services come from, the ServiceCIDRs. UDP flows that are translated from
// such an address and that no frontend knows belong to Services that were deleted while nobody was looking. To be set at a
// start that finds the tables other than they should be, together with all frontends. The list is kept and must never be
// changed.
//
// Nothing tells whose addresses outside of these prefixes were; flows to load balancers' IPs, external IPs and node ports
// that went meanwhile are left, for as long as their clients go on.
func (d *Desired) Orphans(f model.Family, prefixes []netip.Prefix) {
	d.orphans[f] = prefixes
}

// about reports whether there is anything to look for among a family's flows.
func (d *Desired) about(f model.Family) bool { return d.count[f] > 0 || len(d.orphans[f]) > 0 }

// orphan reports whether an address can have led to a Service only.
func (d *Desired) orphan(a netip.Addr) bool {
	return slices.ContainsFunc(d.orphans[model.FamilyOf(a)], func(p netip.Prefix) bool { return p.Contains(a) })
}

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
	for f, prefixes := range later.orphans {
		if prefixes != nil {
			d.orphans[f] = prefixes
		}
	}
}

// forgetGone leaves out the frontends that are gone.
func (d *Desired) forgetGone() {
	for k, f := range d.frontends {
		if f.gone {
			delete(d.frontends, k)
			d.count[k.Family]--
		}
	}
	d.gone = 0
}

// Stale reports whether an entry has to go, so that the next packet of its client meets the rules anew. It costs one look-up
// by destination, and one more if that is an address of this node.
//
//	UDP flow to a frontend                        stale if
//	translated to an endpoint in the list         never
//	translated to anything else                   always; the service may have been scaled to zero: then the rules refuse
//	not translated, endpoints in the list         always (in zone 0)
//	not translated, no endpoints                  nobody has answered (in zone 0)
//	translated, frontend gone                     always
//	not translated, frontend gone                 never
//	translated, no such frontend                  from an address of [Desired.Orphans]
//
// A flow to a frontend without endpoints that somebody does answer, such as a process on a node that owns the address, works
// as it is; one that nobody answers had better be refused. kube-proxy leaves both, and those of deleted Services too.
//
// Of other protocols only flows that aren't translated and that nobody has answered are stale, and only with Undnated: no
// connection that has come about is ever cut. Entries without translation in other zones than 0 are left alone, because
// it is their purpose: the switch of a network plugin sees the same packet in its own zone before or after the rules do.
func (d *Desired) Stale(f *Flow) bool {
	if f.Protocol != model.UDP && (!d.Undnated || f.Replied || f.Translated()) {
		return false
	}
	to, known := d.find(f.Destination, f.Protocol)
	switch {
	case !known:
		return f.Translated() && d.orphan(f.Destination.Addr())
	case to.gone:
		return f.Translated()
	case to.serves(f.Protocol, f.Server):
		return false
	case f.Translated():
		return true
	case f.Zone != 0:
		return false
	}
	return !f.Replied || f.Protocol == model.UDP && len(to.endpoints) > 0
}

// welcomes reports whether a flow goes where packets to its frontend go.
func (d *Desired) welcomes(f *Flow) bool {
	to, known := d.find(f.Destination, f.Protocol)
	return known && !to.gone && to.serves(f.Protocol, f.Server)
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
