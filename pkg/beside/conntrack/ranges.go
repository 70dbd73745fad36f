package conntrack

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// rangeIndex has the frontends that are ranges of ports, by place, for a binary search. The ranges of present
// frontends do not overlap, because each port belongs to one Service. Ranges of deleted frontends may overlap other
// ranges.
type rangeIndex struct {
	present, gone map[model.AddrProtocol][]model.Key
}

// findRange returns the range that contains a destination. It prefers a present frontend to a deleted one.
func (d *Desired) findRange(at netip.AddrPort, p inet.Protocol) (k model.Key, known bool) {
	if d.ranges == 0 {
		return k, false
	}
	if d.index == nil {
		d.makeIndex()
	}
	where := model.AddrProtocol{Addr: at.Addr(), Protocol: p}
	for _, list := range [][]model.Key{d.index.present[where], d.index.gone[where]} {
		i, _ := slices.BinarySearchFunc(list, at.Port(),
			func(k model.Key, port uint16) int { return int(k.Last) - int(port) })
		if i < len(list) && list[i].Has(at.Port()) {
			return list[i], true
		}
	}
	return k, false
}

// makeIndex makes the index. It joins deleted ranges that overlap. The key of a joined range may be missing in the
// state.
func (d *Desired) makeIndex() {
	d.index = &rangeIndex{present: map[model.AddrProtocol][]model.Key{}, gone: map[model.AddrProtocol][]model.Key{}}
	for k, f := range d.frontends {
		if k.Last == 0 {
			continue
		}
		lists := d.index.present
		if f.gone {
			lists = d.index.gone
		}
		at := k.AddrProtocol()
		lists[at] = append(lists[at], k)
	}
	byPort := func(a, b model.Key) int { return int(a.Port) - int(b.Port) }
	for _, list := range d.index.present {
		slices.SortFunc(list, byPort)
	}
	for at, list := range d.index.gone {
		slices.SortFunc(list, byPort)
		kept := list[:1]
		for _, k := range list[1:] {
			if last := &kept[len(kept)-1]; k.Port <= last.Last {
				last.Last = max(last.Last, k.Last)
			} else {
				kept = append(kept, k)
			}
		}
		d.index.gone[at] = kept
	}
}
