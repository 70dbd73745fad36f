package model

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

var (
	errNotAddr   = errors.New("not an IP address")
	errNotPrefix = errors.New("not an IP address, a slash, and a prefix length")
	errZone      = errors.New("an IPv6 zone has no meaning outside its node; leave it out")
)

// ParseAddr reads an address as Kubernetes does: leading zeros are decimal (010.0.0.1 is 10.0.0.1, see kubernetes issue
// 100895), and an IPv4-mapped IPv6 address becomes IPv4. Zones are invalid. On error the returned Addr is invalid.
func ParseAddr(s string) (netip.Addr, error) {
	addr, err := parseRaw(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("parse %q: %w", s, err)
	}
	return addr.Unmap(), nil
}

// ParseAddrPort reads an address with a port, such as 10.0.0.1:80 or [fd00::1]:80. It reads the address like
// [ParseAddr].
func ParseAddrPort(s string) (netip.AddrPort, error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("parse %q: not an address and a port", s)
	}
	addr, err := ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("parse %q: the port is not a number up to 65535", s)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

// ParsePrefix reads an address prefix as Kubernetes does: leading zeros are decimal, and host bits are masked. A prefix
// inside ::ffff:0:0/96 becomes the IPv4 prefix. Zones are invalid. On error the returned Prefix is invalid.
func ParsePrefix(s string) (netip.Prefix, error) {
	prefix, err := parsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("parse %q: %w", s, err)
	}
	return prefix, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	left, right, ok := strings.Cut(s, "/")
	if !ok {
		return netip.Prefix{}, errNotPrefix
	}
	addr, err := parseRaw(left)
	if err != nil {
		return netip.Prefix{}, err
	}
	n, err := strconv.ParseUint(right, 10, 8)
	if err != nil {
		return netip.Prefix{}, errNotPrefix
	}
	bits := int(n)
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	prefix := netip.PrefixFrom(addr, bits).Masked()
	if !prefix.IsValid() {
		return netip.Prefix{}, fmt.Errorf("%s has no prefix of %d bits", inet.FamilyOf(addr), bits)
	}
	return prefix, nil
}

// parseRaw keeps IPv4-mapped addresses. It does not allocate for canonical input.
func parseRaw(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		if trimmed := withoutLeadingZeros(s); len(trimmed) < len(s) {
			addr, err = netip.ParseAddr(trimmed)
		}
	}
	switch {
	case err != nil:
		return netip.Addr{}, errNotAddr
	case addr.Zone() != "":
		return netip.Addr{}, errZone
	}
	return addr, nil
}

// withoutLeadingZeros removes the leading zeros of each number of an address. net/netip rejects leading zeros because
// some programs read such numbers as octal. Kubernetes has always read them as decimal, and its objects may contain
// them.
func withoutLeadingZeros(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		starts := len(out) == 0 || !isHex(out[len(out)-1])
		if starts && s[i] == '0' && i+1 < len(s) && isHex(s[i+1]) {
			continue
		}
		out = append(out, s[i])
	}
	return string(out)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// ServiceCIDRs returns the prefixes of all ServiceCIDR objects by family: masked, sorted, and without nested prefixes.
// An invalid prefix is left out and becomes a problem. Problems are sorted by object.
func ServiceCIDRs(objs []*networkingv1.ServiceCIDR) (perFamily [2][]netip.Prefix, problems []Problem) {
	for _, obj := range objs {
		if obj == nil {
			continue
		}
		for i, s := range obj.Spec.CIDRs {
			prefix, err := parsePrefix(s)
			if err != nil {
				problems = append(problems, Problem{
					Kind:   "ServiceCIDR",
					Name:   types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name},
					Field:  index("spec.cidrs", i),
					Reason: quoted(s, err.Error()),
				})
				continue
			}
			f := inet.FamilyOf(prefix.Addr())
			perFamily[f] = append(perFamily[f], prefix)
		}
	}
	for f := range perFamily {
		perFamily[f] = outermost(perFamily[f])
	}
	sortByObject(problems)
	return perFamily, problems
}

// outermost sorts masked prefixes in place and removes each that is inside another: interval sets of nftables cannot
// overlap.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	kept := prefixes[:0]
	for _, p := range prefixes {
		if n := len(kept); n > 0 && kept[n-1].Overlaps(p) {
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

// sortByObject sorts problems by object and keeps their order within an object.
func sortByObject(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int { return CompareNames(a.Name, b.Name) })
}

// CompareNames orders names by namespace, then by name.
func CompareNames(a, b types.NamespacedName) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// index returns the path of one item of a list, such as spec.externalIPs[1].
func index(list string, i int) string {
	return list + "[" + strconv.Itoa(i) + "]"
}

// quoted returns the invalid value and the reason. It truncates a long value.
func quoted(value, reason string) string {
	const longest = 100
	if len(value) > longest {
		value = value[:longest] + "..."
	}
	return strconv.Quote(value) + ": " + reason
}
