package host

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vishvananda/netlink/nl"
)

// LoadConntrack makes the kernel load the connection tracking module, if it is not loaded. Its sysctls do not exist
// before. A request for its counters suffices. CAP_NET_ADMIN permits no other way.
func LoadConntrack() error {
	const statistics = 5 // IPCTNL_MSG_CT_GET_STATS
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|statistics, unix.NLM_F_ACK)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("request connection tracking: %w", err)
	}
	return nil
}
