package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// The batch that deletes a UDP frontend adds it to the set deleted-udp. It stays there until the flows to it are deleted, which happens beside the loop.
// If the process dies before, no other trace of the frontend is left, and the flows would continue as long as their clients send. The next process
// finds the frontend in the set. No rule looks up the set.

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

// deletedElement returns the element of a deleted frontend: its address, protocol and port, and the last port of a range or 0. A node port has the
// unspecified address.
func (p *Planner) deletedElement(k model.Key) nft.Element {
	addr := k.Addr
	if !addr.IsValid() {
		addr = inet.Unspecified[k.Family]
	}
	return nft.Element{Set: p.rules.layouts[k.Family].deletedUDP, Key: nft.Value{}.Addr(addr).Proto(k.Protocol).Port(k.Port).Port(k.Last)}
}

// deletedKey returns the frontend of an element. It reports false if the key has another form.
func deletedKey(f inet.Family, e *nft.Element) (k model.Key, ok bool) {
	const word = 4 // a protocol takes one word, and so does a port
	b := e.Key.Bytes()
	if len(b) != f.AddrLen()+3*word {
		return k, false
	}
	addr, _ := netip.AddrFromSlice(b[:f.AddrLen()])
	b = b[f.AddrLen():]
	k = model.Key{Family: f, Protocol: inet.Protocol(b[0]), Port: binary.BigEndian.Uint16(b[word:]), Last: binary.BigEndian.Uint16(b[2*word:])}
	if !addr.IsUnspecified() {
		k.Addr = addr
	}
	return k, true
}
