package plan

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// A Service that scales to zero drops packets while it has no endpoint. The client retries, and then finds the endpoint
// of a pod that has started meanwhile. The packets fill two sets with the numbers of the service ports:
//
//	held     for DemandTime after the last held packet: an outage. pkg/beside/demand reads it.
//	holding  for HoldTime after the first packet of an outage. Later packets are refused, until the outage is over.
//
// So the kernel enforces the time limit, even while no process runs. A service port that stops to hold packets leaves
// both sets: when it holds packets again, the first one begins another outage.

const (
	// HoldTime is the time for which a service port holds packets. Linux clients give up after about as long
	// (tcp_syn_retries).
	HoldTime = 2 * time.Minute
	// DemandTime is the time for which a held packet proves demand.
	DemandTime = 90 * time.Second
	// HeldSet is the name of the set of service ports with demand.
	HeldSet = "held"
	// heldPorts is the size of both sets, twice the number of service ports that may hold packets: an expired element
	// stays for a while.
	heldPorts = 2 * mostHolders
)

// mostHolders is the number of service ports that may hold packets, in each family.
const mostHolders = 4096

// holdChain is the chain of packets to a service port that scales to zero. The first rule that looks up the set held
// matches the first packet of an outage. If a set is full, the chain refuses or drops packets. A packet of a
// connection that began earlier is refused: no retry continues it, and the client shall open another connection.
func (l *layout) holdChain() *nft.Chain {
	number, held := nft.Priority(), outcome.Rows[outcome.Held].Words
	return &nft.Chain{Name: nameOf(kindHold), Comment: held, Rules: append(refuseBegun(),
		rule("", keepBits(portBits)),
		rule(held, in(l.held, []nft.Field{number}, true),
			enter(l.holding, number, HoldTime), enter(l.held, number, DemandTime), countedDrop()),
		rule("no endpoints for too long", in(l.holding, []nft.Field{number}, true), goTo(nameOf(kindReject))),
		rule("demand", enter(l.held, number, DemandTime)),
		rule("", countedDrop()),
	)}
}

// refuseBegun refuses packets of connections that began earlier, and whose entry in connection tracking is gone.
func refuseBegun() []nft.Rule {
	const began = "a connection that began earlier"
	refused := goTo(nameOf(kindReject))
	return []nft.Rule{
		rule(began, protocol(inet.TCP), withoutSYN(), refused),
		rule(began, protocol(inet.SCTP), withoutINIT(), refused),
	}
}

// forgetHeld forgets the packets that the ports of an earlier version of a Service held, if they do not any more.
func (p *Planner) forgetHeld(old *service) {
	for _, port := range old.ports {
		_, holds := p.owners[Holding].names[Number{port.Family, port.number}]
		if port.holds && !holds {
			l, key := p.rules.layouts[port.Family], nft.Value{}.Uint32(port.number)
			p.sink.Discard(nft.Element{Set: l.held, Key: key})
			p.sink.Discard(nft.Element{Set: l.holding, Key: key})
		}
	}
}
