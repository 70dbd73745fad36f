package conntrack

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Flow has the fields of an entry of the kernel's table that decide whether it is stale.
type Flow struct {
	Protocol inet.Protocol
	// Zone is the conntrack zone of either direction; 0 is the default zone.
	Zone uint16
	// ID is the kernel's number of the entry.
	ID uint32
	// Source and Destination are the addresses of the first packet, before any translation.
	Source, Destination netip.AddrPort
	// Server is the source of the replies, which is the destination after translation.
	Server netip.AddrPort
	// Replied is true after a packet in the other direction.
	Replied bool
	// DNAT is the kernel's flag IPS_DST_NAT. ipvs translates packets without setting it.
	DNAT bool
}

// translated reports whether packets reach a different address from the one to which the client sends.
func (f *Flow) translated() bool { return f.DNAT || f.Server != f.Destination }

// Desired is the wanted state of frontends: of the frontends that changed since the last pass, or of all frontends. Flows to other
// destinations are not deleted. Do not change a Desired after passing it to a [Reconciler].
type Desired struct {
	// Undnated makes untranslated flows of all protocols stale, too. After the first sync, and after a time without rules, set
	// Undnated and add all frontends. After an address newly serves node ports, set Undnated and add all node ports. The kernel
	// never evaluates the rules again for a flow that began without them: a UDP flow stays untranslated while the client sends,
	// and a TCP flow while the client repeats its SYN. See kubernetes issue 126468.
	Undnated bool

	frontends map[model.Key]frontend
	// nodes holds the node's addresses that serve node ports, sorted.
	nodes [2][]netip.Addr
	// count is the number of frontends by family, others the number of frontends of protocols other than UDP, and gone the number
	// of deleted frontends.
	count        [2]int
	others, gone int
}

type frontend struct {
	// endpoints are set for UDP only.
	endpoints []netip.AddrPort
	// allowed, if not nil, holds the only sources that may open flows.
	allowed []model.AddrRange
	gone    bool
}

// serves reports whether a UDP flow may continue with an endpoint.
func (f *frontend) serves(e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(f.endpoints, e, netip.AddrPort.Compare)
	return found
}

// allows reports whether a source may open a flow.
func (f *frontend) allows(source netip.Addr) bool {
	if f.allowed == nil {
		return true
	}
	// Only the last range that does not begin after the source may contain it.
	after := sort.Search(len(f.allowed), func(i int) bool { return source.Less(f.allowed[i].First) })
	return after > 0 && f.allowed[after-1].Contains(source)
}

// Frontend sets the endpoints with which UDP flows to a frontend may continue: all endpoints that are ready or serving, including
// terminating ones, regardless of traffic policy and topology. The list may be empty. It must be sorted and must never change, so
// that all frontends of a service port can share it. For other protocols, the list is not used.
//
// kube-proxy (pkg/proxy/conntrack/cleanup.go) keeps only flows to serving endpoints. So it deletes flows to endpoints that are
// ready but not serving, as with spec.publishNotReadyAddresses.
func (d *Desired) Frontend(k model.Key, endpoints []netip.AddrPort) {
	d.set(k, frontend{endpoints: endpoints})
}

// Restrict sets, after [Desired.Frontend], the only sources that may open flows to a frontend (loadBalancerSourceRanges); nil
// allows all. The ranges must be sorted and disjoint, and must never change.
func (d *Desired) Restrict(k model.Key, allowed []model.AddrRange) {
	f := d.frontends[k]
	f.allowed = allowed
	d.set(k, f)
}

// Gone records that a frontend was deleted: its Service was deleted, or the Service lost that port, node port or address. Only the
// next pass needs it.
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
	if k.Protocol != inet.UDP {
		d.others += n
	}
}

// NodeAddresses sets the addresses of this node that serve node ports of a family. The list must be sorted and never change. A
// flow to any other address does not belong to a node port, even if its port is the same. (kube-proxy accepts any address.)
func (d *Desired) NodeAddresses(f inet.Family, addrs []netip.Addr) {
	d.nodes[f] = addrs
}

// onlyUDP reports whether flows of other protocols can be skipped.
func (d *Desired) onlyUDP() bool { return !d.Undnated && d.others == 0 }

// merge adds the state of a later request, which overrides this one.
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

// forgetGone removes the deleted frontends.
func (d *Desired) forgetGone() {
	for k, f := range d.frontends {
		if f.gone {
			delete(d.frontends, k)
			d.tally(k, -1)
		}
	}
	d.gone = 0
}

// Stale reports whether an entry must be deleted, so that the kernel evaluates the rules for the client's next packet. It costs
// one lookup by destination, one more if the destination is an address of this node, and one by source if the frontend has source
// ranges.
//
//	UDP flow to a frontend                        stale if
//	unreplied, source not allowed                 always (in zone 0, if not translated)
//	translated to an endpoint in the list         never
//	translated to anything else                   always; the service may have been scaled to zero: then the rules reject
//	not translated, endpoints in the list         always (in zone 0)
//	not translated, no endpoints                  unreplied (in zone 0)
//	translated, frontend deleted                  always
//	not translated, frontend deleted              never
//
// As in kube-proxy, a flow with a reply continues even if its source is no longer allowed: kube-proxy's rules drop only packets in
// state new. All packets of a flow before the first reply have this state.
//
// A flow to a frontend without endpoints may have replies, for example if a process on a node owns the address. Such a flow works
// and is not stale. A flow without replies is stale, so that the rules can reject it. kube-proxy keeps both kinds of flows, and
// flows to deleted Services.
//
// Of other protocols, only unreplied flows can be stale: flows from a source that is not allowed and, with Undnated, untranslated
// flows. No established connection is cut. Untranslated entries in zones other than 0 are intended: the switch of a network plugin
// handles the same packet in its own zone, before or after the rules.
func (d *Desired) Stale(f *Flow) bool {
	if f.Protocol != inet.UDP && f.Replied {
		return false
	}
	to, known := d.find(f.Destination, f.Protocol)
	switch {
	case !known:
		return false
	case to.gone:
		return f.Protocol == inet.UDP && f.translated()
	case !f.Replied && !to.allows(f.Source.Addr()):
		return f.translated() || f.Zone == 0
	case f.Protocol != inet.UDP:
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

// welcomes reports whether the rules for this state would lead the flow to the same endpoint and allow its source.
func (d *Desired) welcomes(f *Flow) bool {
	to, known := d.find(f.Destination, f.Protocol)
	switch {
	case !known, to.gone, !f.Replied && !to.allows(f.Source.Addr()):
		return false
	case f.Protocol != inet.UDP:
		return f.translated()
	}
	return to.serves(f.Server)
}

// find returns the frontend at a destination.
func (d *Desired) find(at netip.AddrPort, p inet.Protocol) (frontend, bool) {
	addr := at.Addr()
	k := model.Key{Addr: addr, Port: at.Port(), Protocol: p, Family: inet.FamilyOf(addr)}
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
