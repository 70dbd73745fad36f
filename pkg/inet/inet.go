// Package inet has the IP families and the transport protocols of Services, with their names and numbers.
//
// In: an address, or a number of the kernel.
// Out: its family; names for people, for nft and for package net.
// Never: a decision, a clock, a log, a system.
package inet

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Family is an IP family. Its value is an index into arrays of length 2, such as [Unspecified].
type Family uint8

// The two IP families.
const (
	IPv4 Family = iota
	IPv6
)

// Families lists both families in the order in which they are handled.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of a valid address. An IPv4-mapped IPv6 address is IPv6.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", the values of kube-proxy's ip_family metric label.
func (f Family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// Keyword returns nft's keyword for the family, "ip" or "ip6". It is also the prefix of nft's payload expressions.
func (f Family) Keyword() string { return [...]string{"ip", "ip6"}[f] }

// Number returns the kernel's number of the family: AF_INET or AF_INET6, which are also NFPROTO_IPV4 and NFPROTO_IPV6.
func (f Family) Number() uint8 { return [...]uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}[f] }

// FamilyOfNumber returns the family of a number of the kernel. known is false if the number is not that of an IP
// family.
func FamilyOfNumber(number uint8) (f Family, known bool) {
	for _, f := range Families {
		if f.Number() == number {
			return f, true
		}
	}
	return 0, false
}

// AddrLen returns the length of the family's addresses in bytes.
func (f Family) AddrLen() int { return [...]int{4, 16}[f] }

// Unspecified are the addresses that stand for all addresses of a family. Loopback are the prefixes of addresses that
// do not leave a machine, and Localhost is the usual address of each.
var (
	Unspecified = [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	Loopback    = [...]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	Localhost   = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that a Service can have.
const (
	TCP  Protocol = unix.IPPROTO_TCP
	UDP  Protocol = unix.IPPROTO_UDP
	SCTP Protocol = unix.IPPROTO_SCTP
)

// Protocols lists the protocols that a Service can have.
var Protocols = [...]Protocol{TCP, UDP, SCTP}

// ParseProtocol returns the protocol of a Service with the lower-case name. known is false for other names.
func ParseProtocol(name string) (p Protocol, known bool) {
	for _, p := range Protocols {
		if p.String() == name {
			return p, true
		}
	}
	return 0, false
}

// String returns the protocol's lower-case name, as nft prints it. Other protocols have their number.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}
