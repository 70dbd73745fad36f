package command

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// ending is what became of a packet.
type ending struct {
	text    string
	stopped bool
}

// journey is what was heard of one packet.
type journey struct {
	events []nft.TraceEvent
	// chains are the base chains of all tables.
	chains   []nft.BaseChain
	protocol uint8
}

// end says where the packet was seen last, and what came of it.
func (j *journey) end() ending {
	const dropped = 0
	last := j.events[len(j.events)-1]
	where := j.lastAddress()
	switch {
	case last.Verdict == dropped && !last.Returned && !strings.HasPrefix(last.Table, liveTable):
		return ending{j.stopper(last), true}
	case last.Chain == nft.TraceLeaving, last.Chain == nft.TraceDelivered:
		text := "It has left this node."
		if device, _, err := (host.Routes{}).Out(where.Addr()); err == nil {
			text = fmt.Sprintf("It has left this node by %s.", device)
		}
		if last.Chain == nft.TraceDelivered {
			text = "It has reached this node's processes."
		}
		if by := j.translator(); by != "" {
			text = fmt.Sprintf("It was translated to %s by %s, before kube-nftproxy could. %s", where, by, text)
		}
		came := j.answer(where)
		return ending{strings.TrimSpace(text + " " + came.text), came.stopped}
	}
	return ending{"Nothing more is known. What comes next is routing: this node has no route to it, doesn't forward it, or strict reverse path filtering " +
		"drops it (kube-nftproxy status -o wide); or something stops it that isn't nftables'.", true}
}

// stopper names the rule, or the policy, that has dropped the packet, and how to see it.
func (j *journey) stopper(e nft.TraceEvent) string {
	if e.Table == plan.TableName {
		return fmt.Sprintf("Stopped by chain %s of table %s.", e.Chain, e.Table)
	}
	family := ""
	for _, ch := range j.chains {
		if ch.Table == e.Table {
			family = ch.Family
			break
		}
	}
	what := fmt.Sprintf("rule %d of chain %s", e.Handle, e.Chain)
	if e.Policy {
		what = "the policy of chain " + e.Chain
	}
	text := fmt.Sprintf("Stopped by %s of table %s, which isn't kube-nftproxy's", what, strings.TrimSpace(family+" "+e.Table))
	if family != "" {
		text += fmt.Sprintf("; to see it: nft -a list chain %s %s %s", family, e.Table, e.Chain)
	}
	return text + "."
}

// translator names the chain of others after which the packet had another destination, "" if there was none.
func (j *journey) translator() string {
	var to netip.AddrPort
	var before nft.TraceEvent
	for _, e := range j.events {
		if e.To.IsValid() {
			foreign := before.Table != plan.TableName && !strings.HasPrefix(before.Table, liveTable)
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

// own reports whether any rule of ours was asked about where the packet should go.
func (j *journey) own() bool {
	for _, e := range j.events {
		if e.Table == plan.TableName {
			return true
		}
	}
	return false
}

// replies is how long an answer is waited for, look the time between two looks.
const (
	replies = time.Second
	look    = 20 * time.Millisecond
)

// answer says what has come back, according to the kernel's connection tracking.
func (j *journey) answer(where netip.AddrPort) ending {
	from, to := j.events[0].From, j.events[0].To
	if !from.IsValid() || !to.IsValid() {
		return ending{}
	}
	for begin := time.Now(); ; time.Sleep(look) {
		flow, err := conntrack.Lookup(model.Protocol(j.protocol), from, to)
		switch {
		case err != nil:
			return ending{}
		case flow == nil && !j.own():
			return ending{"Connection tracking doesn't know it: a rule has exempted it (notrack), and so no rule can translate it. The chains above " +
				"that aren't kube-nftproxy's are where to look.", true}
		case flow == nil && j.protocol == unix.IPPROTO_TCP: // a reset that is the only answer ends the entry
			return ending{fmt.Sprintf("%s has refused it (TCP reset): nobody listens on port %d there, or something on the way rejects it.", where, where.Port()), true}
		case flow == nil:
			return ending{}
		case flow.Replied:
			return ending{text: fmt.Sprintf("%s has answered.", where)}
		case time.Since(begin) > replies:
			closed := ""
			if j.protocol != unix.IPPROTO_TCP { // a refusal is an ICMP error, and doesn't show
				closed = fmt.Sprintf("nobody listens on port %d there, ", where.Port())
			}
			return ending{fmt.Sprintf("%s hasn't answered within %v: %sthe pod is gone or hangs, or the packet or its answer is lost on the way: a NetworkPolicy, "+
				"a route, the other node.", where, replies, closed), true}
		}
	}
}

// missed says why a packet may not have been seen.
func missed(source string, timeout time.Duration) error {
	return fmt.Errorf("no such packet within %s: it doesn't reach this node (look at %s's own routes and at what it asks for), "+
		"or it is part of a connection that is open already", timeout, cmp.Or(source, "the sender"))
}
