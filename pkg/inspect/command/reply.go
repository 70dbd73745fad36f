package command

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
)

// ending is the result for a packet.
type ending struct {
	text    string
	stopped bool
}

// journey is the list of events of one packet.
type journey struct {
	events []read.TraceEvent
	// table is the name of the program's tables.
	table string
	// chains are the base chains of all tables.
	chains   []read.BaseChain
	protocol inet.Protocol
	// predicted are the possible paths of such a packet.
	predicted *trace.Trace
}

// end describes the last known place of the packet, and its result.
func (j *journey) end() ending {
	const dropped = 0
	last := j.events[len(j.events)-1]
	where := j.lastAddress()
	switch {
	case last.Verdict == dropped && !last.Returned && !strings.HasPrefix(last.Table, liveTable):
		return ending{j.stopper(last), true}
	case last.Chain == read.TraceLeaving, last.Chain == read.TraceDelivered:
		text := "The packet left this node."
		if device, _, err := (host.Routes{}).Out(where.Addr()); err == nil {
			text = fmt.Sprintf("The packet left this node by %s.", device)
		}
		if last.Chain == read.TraceDelivered {
			text = "The packet was delivered to this node."
		}
		if by := j.translator(); by != "" {
			text = fmt.Sprintf("The packet was translated to %s by %s, before the rules of kube-nftproxy. "+
				"%s", where, by, text)
		}
		came := j.answer(where)
		return ending{strings.TrimSpace(text + " " + came.text), came.stopped}
	}
	const silent = "The kernel reported nothing more of this packet"
	// The kernel keeps only entries of packets that no chain has stopped.
	if flow, err := j.flow(); err == nil && flow != nil {
		came := j.answer(flow.Server)
		text := silent + ", but it has left this node or reached one of its processes. " + came.text
		return ending{strings.TrimSpace(text), came.stopped}
	}
	return ending{silent + ". " + j.vanished(where), true}
}

// flow returns the packet's entry of connection tracking, or nil.
func (j *journey) flow() (*conntrack.Flow, error) {
	first := &j.events[0]
	if !first.From.IsValid() || !first.To.IsValid() {
		return nil, nil
	}
	return conntrack.Lookup(j.protocol, first.From, first.To)
}

// vanished returns the reason why the packet left no chain at which it ends: the kernel drops it when it routes it, or
// in another part.
func (j *journey) vanished(where netip.AddrPort) string {
	first, last := j.events[0], j.events[len(j.events)-1]
	link, err := netlink.LinkByIndex(int(first.In))
	if first.In != 0 && first.From.IsValid() && err == nil {
		node := doctor.Config{Sysctls: "/proc/sys"}
		for _, to := range j.destinations(where) {
			if why := node.WhyNotRouted(doctor.Arrival{Device: link.Attrs().Name, From: first.From.Addr(), To: to, Mark: last.Mark}); why != "" {
				return why
			}
		}
	}
	if first.Hops == 1 {
		return "It arrived with the TTL or hop limit 1, so this node does not forward it. Its sender gets the ICMP error " +
			"\"time exceeded\"."
	}
	if err == nil && link.Type() == "bridge" {
		return "It came by a bridge: with br_netfilter, the kernel does not report the rest of the path. A later chain, " +
			"or the receiver, refuses or drops it."
	}
	if legacy := doctor.LegacyTables(); len(legacy) > 0 {
		return fmt.Sprintf("The routes of this node permit it. A trace does not show the rules of %s, which may drop "+
			"it; to list them: %s-save.", strings.Join(legacy, " and "), legacy[0])
	}
	return "The routes of this node permit it, so a part of the kernel other than nftables drops it, such as a " +
		"traffic control or eBPF program."
}

// destinations returns the possible destinations of the packet after its translation. No event has the destination if
// the kernel drops the packet before the next hook.
func (j *journey) destinations(where netip.AddrPort) (list []netip.Addr) {
	if where == j.events[0].To {
		for _, w := range j.predicted.Ways {
			if w.Outcome == trace.Translated {
				list = append(list, w.To.Addr())
			}
		}
	}
	if len(list) == 0 {
		return []netip.Addr{where.Addr()}
	}
	return list
}

// stopper names the rule or policy that has dropped the packet, and the command that lists it.
func (j *journey) stopper(e read.TraceEvent) string {
	if e.Table == j.table {
		return fmt.Sprintf("Stopped by chain %s of table %s.", e.Chain, e.Table)
	}
	family := ""
	if i := slices.IndexFunc(j.chains, func(ch read.BaseChain) bool { return ch.Table == e.Table }); i >= 0 {
		family = j.chains[i].Family
	}
	what := fmt.Sprintf("rule %d of chain %s", e.Handle, e.Chain)
	if e.Policy {
		what = "the policy of chain " + e.Chain
	}
	text := fmt.Sprintf("Stopped by %s of table %s, which belongs to another "+
		"program", what, strings.TrimSpace(family+" "+e.Table))
	if family != "" {
		text += fmt.Sprintf("; to list it: nft -a list chain %s %s %s", family, e.Table, e.Chain)
	}
	return text + "."
}

// translator names the chain of another program that has changed the destination, or returns "".
func (j *journey) translator() string {
	var to netip.AddrPort
	var before read.TraceEvent
	for _, e := range j.events {
		if e.To.IsValid() {
			foreign := before.Table != j.table && !strings.HasPrefix(before.Table, liveTable)
			if to.IsValid() && e.To != to && foreign {
				return fmt.Sprintf("chain %s of table %s", before.Chain, before.Table)
			}
			to = e.To
		}
		before = e
	}
	return ""
}

func (j *journey) lastAddress() (to netip.AddrPort) {
	for _, e := range j.events {
		if e.To.IsValid() {
			to = e.To
		}
	}
	return to
}

// own reports whether any rule of this program was evaluated for the packet.
func (j *journey) own() bool {
	return slices.ContainsFunc(j.events, func(e read.TraceEvent) bool { return e.Table == j.table })
}

// replies is the time to wait for an answer. look is the time between two lookups of the connection.
const (
	replies = time.Second
	look    = 20 * time.Millisecond
)

// answer describes the reply, according to the kernel's connection tracking.
func (j *journey) answer(where netip.AddrPort) ending {
	if first := &j.events[0]; !first.From.IsValid() || !first.To.IsValid() {
		return ending{}
	}
	for begin := time.Now(); ; time.Sleep(look) {
		flow, err := j.flow()
		switch {
		case err != nil:
			return ending{}
		case flow == nil && !j.own():
			check := "Check the chains of other programs above."
			if legacy := doctor.LegacyTables(); len(legacy) > 0 {
				check = fmt.Sprintf("A trace does not show the rules of %s; to list them: %s-save.",
					strings.Join(legacy, " and "), legacy[0])
			}
			return ending{"Connection tracking has no entry for it: a rule has exempted the packet (notrack), so that " +
				"no rule can translate it. " + check, true}
		case flow == nil && j.protocol == inet.TCP: // the kernel deletes the entry after a reset as the only answer
			return ending{fmt.Sprintf("%s refused the connection (TCP reset): nothing listens on port %d, or a "+
				"firewall on the path rejects it.", where, where.Port()), true}
		case flow == nil:
			return ending{}
		case flow.Replied && !flow.Unconfirmed:
			return ending{text: fmt.Sprintf("%s answered.", where)}
		case flow.Replied && time.Since(begin) > replies:
			return ending{fmt.Sprintf("%s answered, but the client has not confirmed the answer within %v: the answer "+
				"was lost on the way back. A chain of another program may drop packets from %[1]s (nft list ruleset), "+
				"or a route to %[3]s may be wrong (ip route get %[3]s).", where, replies, flow.Source.Addr()), true}
		case !flow.Replied && time.Since(begin) > replies:
			if why := bypassed(flow); why != "" {
				return ending{fmt.Sprintf("%s has not answered by this node within %v: %s.", where, replies, why), true}
			}
			if hop, device := (host.Routes{}).Silent(where.Addr()); hop.IsValid() {
				return ending{fmt.Sprintf("%s has not answered within %v: its next hop %s does not answer ARP or NDP on %s. The "+
					"host or the pod is gone, its link is down, or the route is wrong (ip route get %s).", where, replies, hop,
					device, where.Addr()), true}
			}
			closed := ""
			if j.protocol != inet.TCP { // connection tracking does not show a refusal, which is an ICMP error
				closed = fmt.Sprintf("nothing listens on port %d, ", where.Port())
			}
			return ending{fmt.Sprintf("%s has not answered within %v: %sthe pod is gone or hangs, or the packet or its answer was lost on the path (NetworkPolicy, "+
				"route, remote node), or a rule exempts the answer from connection tracking (notrack).", where, replies, closed), true}
		}
	}
}

// bypassed returns the reason why the answers of a flow bypass the rules of this node, or "".
func bypassed(flow *conntrack.Flow) string {
	client, server := flow.Source.Addr(), flow.Server.Addr()
	if flow.Client != flow.Source || client == server {
		return "" // masqueraded: the server answers to this node
	}
	bridges, sysctl, err := host.Bypassing(inet.FamilyOf(server))
	if err != nil {
		return ""
	}
	for _, b := range bridges {
		if b.Holds(client) && b.Holds(server) {
			return fmt.Sprintf("answers from %s to %s bypass the rules, because both are on bridge %s and %s is not 1 "+
				"(kube-nftproxy status has the fix)", server, client, b.Name, sysctl)
		}
	}
	return ""
}

// missed returns the error if no packet arrived, with possible causes.
func missed(source string, timeout time.Duration) error {
	return fmt.Errorf("no matching packet within %s: it does not reach this node (check the routes of %s and the "+
		"address that it connects to), it is part of an established connection, or the interface drops it before all "+
		"rules of IP: a chain at the hook ingress (nft list ruleset netdev), a traffic control or an eBPF program",
		timeout, cmp.Or(source, "the sender"))
}
