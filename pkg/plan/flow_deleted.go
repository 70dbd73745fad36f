package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// The batch that deletes a UDP frontend adds it to the set deleted-udp. It stays there until the flows to it are
// deleted, which happens beside the loop. If the process dies before, no other trace of the frontend is left, and the
// flows would continue as long as their clients send. The next process finds the frontend in the set. No rule looks up
// the set.

// noteDeleted records that no Service has a UDP frontend any more, or with gone false that one has it.
func (p *Planner) noteDeleted(k model.Key, gone bool) {
	if _, known := p.deleted[k]; known == gone {
		return
	}
	e := p.deletedElement(k)
	if gone {
		p.deleted[k] = struct{}{}
		p.put(e)
	} else {
		delete(p.deleted, k)
		p.remove(e)
	}
}

// Deleted records that the flows to deleted frontends are deleted. It ignores other frontends.
func (fs Flows) Deleted(keys []model.Key) {
	for _, k := range keys {
		fs.planner.noteDeleted(k, false)
	}
}

// deletedElement returns the element of a deleted frontend: its address, protocol and port, and the last port of a
// range or 0. A node port has the unspecified address.
func (p *Planner) deletedElement(k model.Key) nft.Element {
	addr := k.Addr
	if !addr.IsValid() {
		addr = inet.Unspecified[k.Family]
	}
	key := nft.Value{}.Addr(addr).Proto(k.Protocol).Port(k.Port).Port(k.Last)
	return nft.Element{Set: p.rules.layouts[k.Family].deletedUDP, Key: key}
}

// deletedKey returns the frontend of an element. It reports false if the key has another form.
func deletedKey(f inet.Family, e *nft.Element) (k model.Key, ok bool) {
	n := len(e.Key.Bytes()) - 4 // without the last port
	if n != f.AddrLen()+8 {     // the address, the protocol and the port
		return k, false
	}
	if k, ok = FrontendOf(f, &nft.Element{Key: e.Key.Cut(0, n)}); k.Addr.IsUnspecified() {
		k.Addr = netip.Addr{}
	}
	k.Last = binary.BigEndian.Uint16(e.Key.Bytes()[n:])
	return k, ok
}
