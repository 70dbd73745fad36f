package read

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Tracer receives the kernel's trace events of marked packets. Rules in the tracer's own table mark the packets. The
// table has an owner: the kernel deletes it when the owner's socket is closed, even if the process crashes.
type Tracer struct {
	owner    *nft.Conn
	listener *netlink.Socket
}

// Traced selects the packets to mark: the first ones of connections.
type Traced struct {
	Family inet.Family
	// From is the source address; invalid for any.
	From     netip.Addr
	To       netip.AddrPort
	Protocol inet.Protocol
}

// TraceEvent is one step of a packet: a rule that matched, or the end of a chain.
type TraceEvent struct {
	// ID is equal in all events of a packet.
	ID           uint32
	Table, Chain string
	// Handle is the handle of the rule; 0 at the end of a chain.
	Handle uint64
	// Returned is true at the end of a chain, Policy if the policy of a base chain decided.
	Returned, Policy bool
	// Verdict is the verdict code, Target the next chain of the packet.
	Verdict int32
	Target  string
	Mark    uint32
	// In is the index of the interface by which the packet has arrived; 0 if the event does not have it, or for a
	// packet of this node.
	In uint32
	// From and To are the addresses at that moment. They are invalid in events without headers.
	From, To netip.AddrPort
	// Hops is the TTL or hop limit; 0 in events without headers.
	Hops uint8
}

// Trace adds a table with rules that mark the selected packets, and listens for their events. Close the tracer to
// delete the table.
func Trace(table string, what Traced) (t *Tracer, err error) {
	t = &Tracer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	if t.listener, err = netlink.Open(); err != nil {
		return t, err
	}
	const join = unix.NETLINK_ADD_MEMBERSHIP
	if err = unix.SetsockoptInt(t.listener.FD(), unix.SOL_NETLINK, join, unix.NFNLGRP_NFTRACE); err != nil {
		return t, fmt.Errorf("listen to traced packets: %w", err)
	}
	if t.owner, err = nft.Open(); err != nil {
		return t, err
	}
	if err = t.owner.Commit(tracingBatch(table, what)); err != nil {
		return t, fmt.Errorf("mark packets to be traced: %w", err)
	}
	return t, nil
}

// Priorities of the tracing chains. Chains with beforeAll mark packets before connection tracking. Chains with afterAll
// see packets after all other chains.
const (
	beforeAll = -450
	afterAll  = 450
)

// Names of the chains that see a packet last: before a local process receives it, and before it leaves the node.
const (
	TraceDelivered = "delivered"
	TraceLeaving   = "leaving"
)

func tracingBatch(table string, what Traced) *nft.Batch {
	const comment = "kube-nftproxy trace --live: deleted when the command exits"
	t := &nft.Table{Family: what.Family, Name: table, Comment: comment}
	base := func(name string, hook uint32, priority int32, rules ...nft.Rule) *nft.Chain {
		return &nft.Chain{Name: name, Type: "filter", Hook: hook, Priority: priority, Rules: rules}
	}
	chains := []*nft.Chain{
		base("arriving", unix.NF_INET_PRE_ROUTING, beforeAll, what.rule()),
		base("sent", unix.NF_INET_LOCAL_OUT, beforeAll, what.rule()),
		base(TraceDelivered, unix.NF_INET_LOCAL_IN, afterAll),
		base(TraceLeaving, unix.NF_INET_POST_ROUTING, afterAll),
	}
	b := nft.NewBatch(0)
	b.AddOwnedTable(t)
	for _, c := range chains {
		b.AddChain(t, c)
	}
	for _, c := range chains {
		b.AddRules(t, c)
	}
	return b
}

// rule returns the rule that marks packets: for TCP those with SYN and without ACK.
func (w Traced) rule() nft.Rule {
	const reg = unix.NFT_REG32_00
	equal := func(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: b} }
	var exprs []expr.Any
	if w.From.IsValid() {
		exprs = append(exprs, nft.SrcAddr(w.Family).Load(reg), equal(w.From.AsSlice()))
	}
	exprs = append(exprs, nft.DstAddr(w.Family).Load(reg), equal(w.To.Addr().AsSlice()),
		nft.L4Proto().Load(reg), equal([]byte{uint8(w.Protocol)}),
		nft.DstPort().Load(reg), equal(binary.BigEndian.AppendUint16(nil, w.To.Port())))
	if w.Protocol == inet.TCP {
		const flagsOffset, syn, synAndAck = 13, 0x02, 0x12
		exprs = append(exprs,
			&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{synAndAck}, Xor: []byte{0}},
			equal([]byte{syn}))
	}
	return nft.Rule{Exprs: append(exprs,
		&expr.Immediate{Register: reg, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: reg})}
}

// Close removes the table with its rules.
func (t *Tracer) Close() error {
	var errs []error
	if t.owner != nil {
		errs = append(errs, t.owner.Close())
	}
	if t.listener != nil {
		errs = append(errs, t.listener.Close())
	}
	return errors.Join(errs...)
}

// Next waits for the next events. If no event arrives within patience, Next returns an empty list. It does not wait if
// patience is negative, which the kernel would take for a wait without an end.
func (t *Tracer) Next(patience time.Duration) ([]TraceEvent, error) {
	ready := []unix.PollFd{{Fd: int32(t.listener.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, max(0, int(patience.Milliseconds())))
	if err == unix.EINTR || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("wait for traced packets: %w", err)
	}
	const most = 1 << 10 // packets may arrive faster than they are read
	var list []TraceEvent
	for m, err := range t.listener.Receive(false) {
		if err != nil {
			return nil, fmt.Errorf("listen to traced packets: %w", err)
		}
		if m.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
			list = append(list, parseTrace(m.Object()))
		}
		if len(list) == most {
			break
		}
	}
	return list, nil
}

func parseTrace(b []byte) (e TraceEvent) {
	var network, transport []byte
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_TRACE_ID:
			e.ID = netlink.Uint32(v)
		case unix.NFTA_TRACE_TABLE:
			e.Table = netlink.Text(v)
		case unix.NFTA_TRACE_CHAIN:
			e.Chain = netlink.Text(v)
		case unix.NFTA_TRACE_RULE_HANDLE:
			e.Handle = netlink.Uint64(v)
		case unix.NFTA_TRACE_TYPE:
			e.Policy = netlink.Uint32(v) == unix.NFT_TRACETYPE_POLICY
			e.Returned = netlink.Uint32(v) == unix.NFT_TRACETYPE_RETURN
		case unix.NFTA_TRACE_MARK:
			e.Mark = netlink.Uint32(v)
		case unix.NFTA_TRACE_IIF:
			e.In = netlink.Uint32(v)
		case unix.NFTA_TRACE_POLICY:
			e.Verdict = int32(netlink.Uint32(v))
		case unix.NFTA_TRACE_VERDICT:
			for typ, v := range netlink.Attributes(v) {
				switch typ {
				case unix.NFTA_VERDICT_CODE:
					e.Verdict = int32(netlink.Uint32(v))
				case unix.NFTA_VERDICT_CHAIN:
					e.Target = netlink.Text(v)
				}
			}
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = v
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = v
		}
	}
	e.From, e.To = addresses(network, transport)
	e.Hops = hops(network)
	return e
}

// hops reads the TTL or hop limit from a header; 0 if the header is missing.
func hops(network []byte) uint8 {
	switch {
	case len(network) < 20:
		return 0
	case network[0]>>4 == 6:
		return network[7]
	}
	return network[8]
}

// addresses reads the addresses from headers. They are invalid if the headers are missing.
func addresses(network, transport []byte) (from, to netip.AddrPort) {
	at, n := 12, 4
	if len(network) > 0 && network[0]>>4 == 6 {
		at, n = 8, 16
	}
	if len(network) < at+2*n || len(transport) < 4 {
		return from, to
	}
	source, _ := netip.AddrFromSlice(network[at : at+n])
	destination, _ := netip.AddrFromSlice(network[at+n : at+2*n])
	return netip.AddrPortFrom(source, binary.BigEndian.Uint16(transport)),
		netip.AddrPortFrom(destination, binary.BigEndian.Uint16(transport[2:]))
}
