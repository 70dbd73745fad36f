package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// FrontendSets returns the sets of a family, in the table of a service-proxy name, in which every frontend has an element; [FrontendOf] reads its key.
func FrontendSets(f inet.Family, serviceProxyName string) []*nft.Set {
	l := newLayout(f, &Options{ServiceProxyName: serviceProxyName})
	return []*nft.Set{l.services, l.nodePorts}
}

// FrontendOf returns the frontend that the key of an element of [FrontendSets] stands for. It reports false for anything else.
func FrontendOf(f inet.Family, key *nft.Value) (k model.Key, ok bool) {
	const word = 4 // a protocol and a port fill one each
	b := key.Bytes()
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
	return k, true
}
