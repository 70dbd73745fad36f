package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	netfilter "github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// ipsetModule exists if ipset is loaded or built in. Without this check, a request would load the module.
const ipsetModule = "/sys/module/ip_set"

// kubeProxysIPSets returns the names of kube-proxy's sets.
func kubeProxysIPSets() (list []string, err error) {
	if _, err := os.Stat(ipsetModule); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	const onlyNames = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	r := nl.NewNetlinkRequest(nl.IPSET_CMD_LIST|unix.NFNL_SUBSYS_IPSET<<8, unix.NLM_F_DUMP)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_FLAGS|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, onlyNames)))
	replies, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	known := ipsets()
	for _, m := range replies {
		if name := ipsetName(m); slices.Contains(known, name) {
			list = append(list, name)
		}
	}
	return list, nil
}

// ipsetName returns the name of the set in a message, or "".
func ipsetName(m []byte) string {
	return netfilter.Text(netfilter.Find(m[min(nl.SizeofNfgenmsg, len(m)):], nl.IPSET_ATTR_SETNAME))
}

// removeIPSets removes kube-proxy's sets. Remove the rules that use them first.
func removeIPSets(note *notes) error {
	list, err := kubeProxysIPSets()
	if err != nil {
		return err
	}
	var errs []error
	removed := 0
	for _, name := range list {
		if err := netlink.IpsetDestroy(name); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("destroy ipset %s: %w", name, err))
			continue
		}
		removed++
	}
	if removed > 0 {
		note.removed("ipset", fmt.Sprintf("%d sets", removed))
	}
	return errors.Join(errs...)
}
