package model

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	errNotAddr   = errors.New("not an IP address")
	errNotPrefix = errors.New("not an IP address, a slash, and a prefix length")
	errZone      = errors.New("an IPv6 zone has no meaning outside its node; leave it out")
)

// ParseAddr reads an address as Kubernetes does: leading zeros are decimal (010.0.0.1 is 10.0.0.1, see kubernetes
// issue 100895), and an IPv4-mapped IPv6 address is the IPv4 address in it. Zones are refused. On error the returned
// Addr is invalid.
func ParseAddr(s string) (netip.Addr, error) {
	addr, err := parseRaw(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("parse %q: %w", s, err)
	}
	return addr.Unmap(), nil
}

// ParsePrefix reads an address prefix as Kubernetes does: leading zeros are decimal, and host bits may be set, but are
// masked in the result. A prefix inside ::ffff:0:0/96 is the IPv4 prefix in it. Zones are refused. On error the
// returned Prefix is invalid.
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
		return netip.Prefix{}, fmt.Errorf("%s has no prefix of %d bits", FamilyOf(addr), bits)
	}
	return prefix, nil
}

// parseRaw leaves IPv4-mapped addresses as they are. Well-formed input costs no allocation.
func parseRaw(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		addr, err = netip.ParseAddr(withoutLeadingZeros(s))
	}
	switch {
	case err != nil:
		return netip.Addr{}, errNotAddr
	case addr.Zone() != "":
		return netip.Addr{}, errZone
	}
	return addr, nil
}

// withoutLeadingZeros takes the leading zeros off each number of an address. net/netip refuses them because some
// programs read them as octal; Kubernetes objects may hold them, and always meant decimal.
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

// ServiceCIDRs returns the prefixes of all ServiceCIDR objects by family: masked, sorted, and none inside another. A
// prefix that cannot be read is left out and is one of the problems, which are sorted by object.
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
			f := FamilyOf(prefix.Addr())
			perFamily[f] = append(perFamily[f], prefix)
		}
	}
	for f := range perFamily {
		perFamily[f] = outermost(perFamily[f])
	}
	sortByObject(problems)
	return perFamily, problems
}

// outermost sorts masked prefixes in place and drops each that lies inside another: interval sets of nftables take no
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

// sortByObject makes the order of problems independent of the order of objects, and keeps it within each.
func sortByObject(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int { return CompareNames(a.Name, b.Name) })
}

// CompareNames orders names by namespace, and in a namespace by name.
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

// quoted returns a reason with the value that it is about, of which only the beginning is shown if it is long.
func quoted(value, reason string) string {
	const longest = 100
	if len(value) > longest {
		value = value[:longest] + "..."
	}
	return strconv.Quote(value) + ": " + reason
}
