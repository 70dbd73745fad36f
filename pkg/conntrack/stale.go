package conntrack

import (
	"net/netip"
	"slices"
	"sort"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Flow has the fields of an entry of the kernel's table that decide whether it is stale.
type Flow struct {
	Protocol model.Protocol
	// Zone is the conntrack zone of either direction; 0 is the default zone.
	Zone uint16
	// ID is the kernel's number of the entry.
	ID uint32
	// Source and Destination are the addresses of the first packet, before any translation.
	Source, Destination netip.AddrPort
	// Server is the source of replies: the destination after translation.
	Server netip.AddrPort
	// Replied is true after a packet in the other direction.
	Replied bool
	// DNAT is the kernel's flag IPS_DST_NAT. NAT by ipvs does not set it.
	DNAT bool
}

// translated reports whether packets reach another address than the client sends to.
func (f *Flow) translated() bool { return f.DNAT || f.Server != f.Destination }

// Desired is the wanted state of some frontends: of those that changed since the last pass, or of all. Flows to others are not
// deleted. Do not change it after passing it to a [Reconciler].
type Desired struct {
	// Undnated includes entries of all protocols without DNAT. Set it with all frontends after the first sync and after a time
	// without rules, and with all node ports after an address was added that serves them. The kernel never evaluates the rules
	// again for a flow that began without them: UDP while the client sends, TCP while it repeats its SYN. See kubernetes issue
	// 126468.
	Undnated bool

	frontends map[model.Key]frontend
	// nodes are the node's addresses for node ports, sorted.
	nodes [2][]netip.Addr
	// count is the number of frontends by family, others that of protocols other than UDP, gone that of deleted frontends.
	count        [2]int
	others, gone int
}

type frontend struct {
	// endpoints are set for UDP only.
	endpoints []netip.AddrPort
	// allowed, if not nil, are the only sources that may open flows.
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

// Frontend sets the endpoints with which flows to a frontend may continue: all that are ready or serving, including terminating
// ones, regardless of traffic policy and topology. The list may be empty. It must be sorted and must never change, so that all
// frontends of a service port can share it. It is only used for UDP.
//
// kube-proxy (pkg/proxy/conntrack/cleanup.go) keeps flows to serving endpoints only. So it cuts off endpoints that are ready but
// not serving, which spec.publishNotReadyAddresses causes.
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

// Gone records that a frontend was deleted: its Service was deleted, or the Service lost that port, node port or address. It is
// needed only for the next pass.
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

// NodeAddresses sets the addresses of this node that serve node ports of a family. The list must be sorted and never change.
// Flows to other addresses do not belong to a node port, whatever their port. (kube-proxy accepts any address.)
func (d *Desired) NodeAddresses(f model.Family, addrs []netip.Addr) {
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
// one lookup by destination, one more if that is an address of this node, and one by source if the source matters.
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
// A flow with a reply continues although its source is no longer allowed, as in kube-proxy: its rules drop packets in state new,
// the state of all packets of a flow before the first reply.
//
// A flow to a frontend without endpoints may have replies, for example if a process on a node owns the address. Such a flow works
// and stays. Without replies, the rules should reject it. kube-proxy keeps both, and those of deleted Services too.
//
// Of other protocols, only unreplied flows are stale: those whose source is not allowed, and with Undnated those that are not
// translated. No established connection is cut. Untranslated entries in zones other than 0 are intended: the switch of a network
// plugin sees the same packet in its own zone before or after the rules do.
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

// welcomes reports whether a flow has the destination and source that the rules would allow.
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
