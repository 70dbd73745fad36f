package host

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mostListed is the limit of each list in [Listing].
const mostListed = 2000

// Listing returns the addresses, the rules of policy routing, and the first routes of all tables, as text.
func Listing() ([]byte, error) {
	var b bytes.Buffer
	var errs []error
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		addresses, err := netlink.AddrList(nil, f)
		errs = append(errs, err)
		for _, a := range addresses[:min(len(addresses), mostListed)] {
			fmt.Fprintf(&b, "address %s, interface %d %s\n", a.IPNet, a.LinkIndex, a.Label)
		}
		rules, err := netlink.RuleList(f)
		errs = append(errs, err)
		for _, r := range rules[:min(len(rules), mostListed)] {
			fmt.Fprintf(&b, "rule %s\n", r)
		}
		n := 0
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		err = netlink.RouteListFilteredIter(f, all, netlink.RT_FILTER_TABLE, func(r netlink.Route) (more bool) {
			if n++; n <= mostListed {
				fmt.Fprintf(&b, "route %s\n", r)
			}
			return n <= mostListed
		})
		errs = append(errs, err)
		if n > mostListed {
			fmt.Fprintf(&b, "... and more routes\n")
		}
	}
	return b.Bytes(), errors.Join(errs...)
}
