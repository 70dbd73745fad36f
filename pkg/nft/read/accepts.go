package read

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// acceptsDNAT reports whether a rule has one of the forms
//
//	ct status dnat accept                         [ct load status] [bitwise & 0x20] [cmp neq 0] [immediate accept]
//	-m conntrack --ctstate DNAT -j ACCEPT         [match conntrack] [immediate accept]
//
// possibly with counters and comments. --ctstate may list other states.
func acceptsDNAT(expressions []byte) bool {
	const (
		none = iota
		status
		masked
		translated
	)
	state := none
	for _, e := range netlink.Attributes(expressions) {
		name, data := nft.Expression(e)
		field := func(typ uint16) []byte { return netlink.Find(data, typ) }
		switch {
		case name == "counter", name == "match" && netlink.Text(field(unix.NFTA_MATCH_NAME)) == "comment":
		case name == "ct" && netlink.Uint32(field(unix.NFTA_CT_KEY)) == unix.NFT_CT_STATUS:
			state = status
		case name == "bitwise" && state == status &&
			native(netlink.Find(field(unix.NFTA_BITWISE_MASK), unix.NFTA_DATA_VALUE)) == statusDNAT:
			state = masked
		case name == "cmp" && state == masked && netlink.Uint32(field(unix.NFTA_CMP_OP)) == unix.NFT_CMP_NEQ &&
			native(netlink.Find(field(unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)) == 0:
			state = translated
		case name == "match" && state == none &&
			matchesDNAT(netlink.Text(field(unix.NFTA_MATCH_NAME)), field(unix.NFTA_MATCH_INFO)):
			state = translated
		case name == "immediate" && state == translated:
			chain, code := nft.Verdict(field(unix.NFTA_IMMEDIATE_DATA))
			return chain == "" && code == nfAccept
		default:
			return false
		}
	}
	return false
}

// statusDNAT is IPS_DST_NAT.
const statusDNAT = 1 << 5

// Bits of the states of connections.
const (
	stateInvalid = 1 << 0
	stateRelated = 1 << 2
	stateNew     = 1 << 3
)

// native reads a value of 4 bytes in host byte order. It returns 0 for a value of another length.
func native(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// matchesDNAT reports whether a match of iptables (struct xt_conntrack_mtinfo3) tests only states of a connection, and
// accepts the state DNAT.
func matchesDNAT(name string, info []byte) bool {
	const (
		flags, inverted, states = 146, 148, 150
		onlyState, dnat         = 1 << 0, 1 << 7
	)
	if name != "conntrack" || len(info) < states+2 {
		return false
	}
	at := func(offset int) uint16 { return binary.NativeEndian.Uint16(info[offset:]) }
	return at(flags)&^(1<<13) == onlyState && at(inverted) == 0 && at(states)&dnat != 0
}
