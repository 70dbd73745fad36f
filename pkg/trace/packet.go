package trace

import (
	"cmp"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Packet is the first packet of a connection.
type Packet struct {
	From netip.Addr
	To   netip.AddrPort
	// Protocol is the number of the transport protocol.
	Protocol uint8
	// Own says that this machine sends it; otherwise it arrives by Interface.
	Own       bool
	Interface string
	// NoRoute says that this machine has no route: back to the source, or, for its own packets, to the destination, without which it
	// doesn't even begin to send.
	NoRoute bool
}

// String describes the packet.
func (p Packet) String() string {
	from := "this node"
	if p.From.IsValid() {
		from = p.From.String()
	}
	return fmt.Sprintf("%s -> %s/%s", from, p.To, ProtocolName(p.Protocol))
}

func (p Packet) family() nft.Family {
	if p.To.Addr().Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// ProtocolName is the word for a transport protocol.
func ProtocolName(p uint8) string {
	return cmp.Or(nft.ProtocolName(p), fmt.Sprintf("protocol-%d", p))
}

// Elements answers for single elements of sets.
type Elements interface {
	Get(s *nft.Set, keys []nft.Value) ([]*nft.Found, error)
}

// Routes answers for this machine's routes.
type Routes interface {
	// Type is the type of an address to this machine, as RTN_LOCAL.
	Type(addr netip.Addr) (uint32, error)
	// Out is the interface by which packets to an address leave, and the address that they leave with where this machine sends them.
	Out(to netip.Addr) (device string, source netip.Addr, err error)
	// Masquerade is the address that packets to an address have when they leave masqueraded.
	Masquerade(to netip.Addr) (netip.Addr, error)
}

// Outcome is what becomes of a packet.
type Outcome string

// The outcomes.
const (
	// Untouched: no rule of the table does anything to it; it goes where it would without.
	Untouched Outcome = "untouched"
	// Translated: it goes to an endpoint.
	Translated Outcome = "translated"
	// Refused: the sender is told at once.
	Refused Outcome = "refused"
	// Dropped: the sender waits.
	Dropped Outcome = "dropped"
	// Unknown: a rule has something that this package doesn't follow.
	Unknown Outcome = "unknown"
)

// Way is one of the ways that a packet may go.
type Way struct {
	Probability float64 `json:"probability"`
	Outcome     Outcome `json:"outcome"`
	// To is where it goes in the end, Source whom the receiver sees.
	To     netip.AddrPort `json:"to"`
	Source netip.Addr     `json:"source"`
	// Masqueraded says that Source is this machine's instead of the sender's.
	Masqueraded bool `json:"masqueraded"`
	// Here says that it is for this machine itself, NoRoute that this machine has no route to it.
	Here    bool `json:"here,omitempty"`
	NoRoute bool `json:"noRoute,omitempty"`
	// How says how the sender is told.
	How string `json:"how,omitempty"`
	// Why says in words why it goes this way; MasqueradedWhy why its source is another.
	Why            string `json:"why"`
	MasqueradedWhy string `json:"masqueradedWhy,omitempty"`
	// Steps are the rules that have done something; only the first of ways that go alike has them.
	Steps []Step `json:"steps,omitempty"`
}

// Step is a rule that has done something to the packet.
type Step struct {
	Hook  string `json:"hook"`
	Chain string `json:"chain"`
	// Rule is the rule in nft's language with its comment.
	Rule    string `json:"rule"`
	Comment string `json:"comment,omitempty"`
	Facts   []Fact `json:"facts,omitempty"`
	// To is the chain that the packet went to next; Back says that it may come back from there.
	To   string `json:"to,omitempty"`
	Back bool   `json:"back,omitempty"`
}

// Fact is something that a rule found or did.
type Fact struct {
	// Set, Key, Value and Comment are those of an element that was found. Missing says that there was none.
	Set     string `json:"set,omitempty"`
	Key     string `json:"key,omitempty"`
	Value   string `json:"value,omitempty"`
	Comment string `json:"comment,omitempty"`
	Missing bool   `json:"missing,omitempty"`
	// Drawn is how many numbers one was drawn of.
	Drawn uint32 `json:"drawn,omitempty"`
	// Did is what was done, in words.
	Did string `json:"did,omitempty"`
}

// Trace is what a packet may do.
type Trace struct {
	Packet Packet `json:"-"`
	// Frontend is the name of the Service port, "" if the packet is for none; Via are its address, protocol and port.
	Frontend string `json:"frontend"`
	// Why says why there is no rule to follow, if there isn't.
	Why  string `json:"why,omitempty"`
	Ways []Way  `json:"ways"`
	// Hints are further things that may explain it.
	Hints []string `json:"hints,omitempty"`
	// Also lists base chains of other tables on the way that may stop it.
	Also []string `json:"also,omitempty"`
}

// From makes a packet that comes from an address: one of this machine's own, or invalid for whichever it would send with, or one that is
// reached by an interface.
func From(from netip.Addr, to netip.AddrPort, protocol uint8, routes Routes) (Packet, error) {
	p := Packet{From: from, To: to, Protocol: protocol, Own: !from.IsValid()}
	if from.IsValid() && from.Is4() != to.Addr().Is4() {
		return p, fmt.Errorf("%s and %s are of different families", from, to.Addr())
	}
	if from.IsValid() {
		typ, err := routes.Type(from)
		if err != nil {
			return p, err
		}
		p.Own = typ == unix.RTN_LOCAL
	}
	toward := to.Addr()
	if !p.Own {
		toward = from
	}
	typ, err := routes.Type(toward)
	if err != nil || typ == unix.RTN_UNREACHABLE {
		p.NoRoute = true
		return p, err
	}
	device, source, err := routes.Out(toward)
	switch {
	case !p.Own:
		p.Interface = device
	case !from.IsValid():
		p.From = source
	}
	return p, err
}
