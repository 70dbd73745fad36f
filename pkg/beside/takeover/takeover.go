package takeover

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Kind is a kind of objects that kube-proxy leaves.
type Kind string

// The kinds of leftovers.
const (
	// NFTables are the tables of mode nftables.
	NFTables Kind = "nftables"
	// IPTablesNFT are the chains of modes iptables and ipvs in the tables of iptables-nft.
	IPTablesNFT Kind = "iptables-nft"
	// IPTablesLegacy are the same chains in the tables of iptables-legacy.
	IPTablesLegacy Kind = "iptables-legacy"
	// IPVS are the virtual servers, the sets and the device of mode ipvs.
	IPVS Kind = "ipvs"
)

// Kinds are all kinds of leftovers.
var Kinds = []Kind{NFTables, IPTablesNFT, IPTablesLegacy, IPVS}

// Leftovers has the number of kube-proxy's objects by kind: tables for NFTables, chains for both backends of
// iptables, and virtual servers, sets and the device together for IPVS. A kind that could not be read has no entry.
type Leftovers map[Kind]int

// String returns the numbers above 0, in the order of [Kinds].
func (l Leftovers) String() string {
	var parts []string
	for _, k := range Kinds {
		if n := l[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, n))
		}
	}
	return strings.Join(parts, ", ")
}

// any reports whether any number is above 0.
func (l Leftovers) any() bool {
	for _, n := range l {
		if n > 0 {
			return true
		}
	}
	return false
}

// Look counts the objects of kube-proxy, whether a kube-proxy runs or not. Virtual servers at excluded addresses do
// not count. Look changes nothing. After an error, the result has the kinds that could be read.
func Look(excluded []netip.Prefix) (Leftovers, error) {
	l := Leftovers{}
	note := func(k Kind, n int, err error) error {
		if err == nil {
			l[k] = n
		}
		return err
	}
	n, err := countIPVS(excluded)
	errs := []error{note(IPVS, n, err)}
	n, err = countLegacy()
	errs = append(errs, note(IPTablesLegacy, n, err))
	conn, err := nft.Open()
	if err != nil {
		return l, errors.Join(append(errs, err)...)
	}
	defer conn.Close()
	n, err = countNFT(conn)
	errs = append(errs, note(IPTablesNFT, n, err))
	tables, err := apply.KubeProxyTables(conn)
	return l, errors.Join(append(errs, note(NFTables, len(tables), err))...)
}

// countIPVS counts the objects of mode ipvs. Without kube-proxy's device or sets, it returns 0: the virtual servers
// may belong to another program.
func countIPVS(excluded []netip.Prefix) (int, error) {
	link, err := findDevice()
	if err != nil {
		return 0, err
	}
	sets, err := kubeProxysIPSets()
	if err != nil {
		return 0, err
	}
	n := len(sets)
	if link != nil {
		n++
	}
	if n == 0 {
		return 0, nil
	}
	v, err := openIPVS(excluded)
	if err != nil || v == nil {
		return n, err
	}
	servers, err := v.servers()
	return n + len(servers), err
}

// Cleanup removes all objects of kube-proxy except virtual servers at excluded addresses, even if they are in use. It
// logs the removed objects.
func Cleanup(logger klog.Logger, excluded []netip.Prefix) error {
	_, err := remove(newNotes(logger), excluded, false)
	return err
}

// remove removes objects in the order of their dependencies: rules before the sets that they use.
//
// In mode ipvs, the rules accept packets that ipvs forwards, masquerade packets of this node whose source is an
// address of the device, and block the node's own ports at these addresses. So the rules stay as long as the
// addresses.
//
// If patient is true, remove keeps all objects that connections of ipvs need. busy is the number of virtual servers
// that remain. If it is not 0, call remove again later.
func remove(note *notes, excluded []netip.Prefix, patient bool) (busy int, err error) {
	link, busy, err := removeServers(note, excluded, patient)
	if patient && (busy > 0 || err != nil) {
		return busy, err
	}
	errs := []error{err}
	errs = append(errs, removeLegacy(note), removeFromNFTables(note), removeIPSets(note))
	if link != nil {
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("delete device %s: %w", device, err))
		} else {
			note.removed("device "+device, "the device with its addresses")
		}
	}
	return busy, errors.Join(errs...)
}

// removeServers removes kube-proxy's virtual servers; if patient is true, only those without connections. If servers
// remain, it also removes the addresses of the device that none of them uses. It returns the device, or nil, and the
// number of remaining servers.
func removeServers(note *notes, excluded []netip.Prefix, patient bool) (link netlink.Link, busy int, err error) {
	if n, err := countIPVS(excluded); n == 0 || err != nil {
		return nil, 0, err
	}
	if link, err = findDevice(); err != nil {
		return nil, 0, err
	}
	v, err := openIPVS(excluded)
	if err != nil || v == nil {
		return link, 0, err
	}
	left, removed, err := v.drain(patient)
	if removed > 0 {
		note.removed("ipvs", fmt.Sprintf("%d virtual servers; %d remain", removed, len(left)))
	}
	if link != nil && len(left) > 0 {
		err = errors.Join(err, removeAddresses(note, link, left))
	}
	return link, len(left), err
}

// removeAddresses removes the addresses of the device that no server uses.
func removeAddresses(note *notes, link netlink.Link, servers []server) error {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", device, err)
	}
	removed := 0
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		inUse := slices.ContainsFunc(servers, func(s server) bool { return s.addr == addr.Unmap() })
		if inUse || addr.IsLinkLocalUnicast() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("delete address %s of %s: %w", addr.Unmap(), device, err)
		}
		removed++
	}
	if removed > 0 {
		note.removed("device "+device, fmt.Sprintf("%d addresses", removed))
	}
	return nil
}

// findDevice returns the device of mode ipvs, or nil.
func findDevice() (netlink.Link, error) {
	link, err := netlink.LinkByName(device)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find device %s: %w", device, err)
	case link.Type() != "dummy":
		return nil, nil
	}
	return link, nil
}

// removeFromNFTables removes the chains of iptables-nft and the tables of mode nftables.
func removeFromNFTables(note *notes) error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(removeNFT(conn, note), removeTables(conn, note))
}

// removeTables removes the tables of mode nftables.
func removeTables(conn *nft.Conn, note *notes) error {
	var errs []error
	for _, f := range inet.Families {
		found, err := conn.DeleteTable(f, apply.KubeProxyTable)
		errs = append(errs, err)
		if found {
			note.removed("nftables", fmt.Sprintf("table %s %s", f.Keyword(), apply.KubeProxyTable))
		}
	}
	return errors.Join(errs...)
}
