package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// FrontendSets returns the sets of an instance's table that have the elements of all frontends of a family.
// [FrontendOf] reads such an element.
func FrontendSets(f inet.Family, serviceProxyName string) []*nft.Set {
	l := newLayout(f, &Options{ServiceProxyName: serviceProxyName})
	return []*nft.Set{l.services, l.nodePorts, l.ranges}
}

// FrontendOf returns the frontend of an element of [FrontendSets], by the element's key. It reports false if the key
// has another length.
func FrontendOf(f inet.Family, e *nft.Element) (k model.Key, ok bool) {
	const word = 4 // a protocol takes one word, and so does a port
	b := e.Key.Bytes()
	k.Family = f
	switch len(b) - 2*word {
	case 0:
	case f.AddrLen():
		k.Addr, _ = netip.AddrFromSlice(b[:len(b)-2*word])
		b = b[len(b)-2*word:]
	default:
		return model.Key{}, false
	}
	k.Protocol, k.Port = inet.Protocol(b[0]), binary.BigEndian.Uint16(b[word:])
	if end := e.KeyEnd.Bytes(); len(end) == len(e.Key.Bytes()) {
		k.Last = binary.BigEndian.Uint16(end[len(end)-word:])
	}
	return k, true
}
