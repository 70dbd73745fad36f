package trace

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Packet is the first packet of a connection.
type Packet struct {
	From netip.Addr
	// FromPort is the source port; 0 if it is unknown.
	FromPort uint16
	To       netip.AddrPort
	// Protocol is the transport protocol number.
	Protocol inet.Protocol
	// Own is true if this machine sends the packet. Otherwise the packet arrives through Interface.
	Own       bool
	Interface string
	// NoRoute is true if this machine lacks a route. If Own is true, it lacks a route to the destination, and does not
	// send the packet. Otherwise it lacks a route back to the source.
	NoRoute bool
}

// String describes the packet.
func (p Packet) String() string {
	from := "this node"
	if p.From.IsValid() {
		from = p.From.String()
	}
	if p.From.IsValid() && p.FromPort != 0 {
		from = netip.AddrPortFrom(p.From, p.FromPort).String()
	}
	return fmt.Sprintf("%s -> %s/%s", from, p.To, p.Protocol)
}

func (p Packet) family() inet.Family { return inet.FamilyOf(p.To.Addr()) }

// Elements looks up single elements of sets.
type Elements interface {
	Get(s *nft.Set, keys []nft.Value) ([]*nft.Found, error)
}

// Routes looks up this machine's routes.
type Routes interface {
	// Type returns the route type of an address, such as RTN_LOCAL.
	Type(addr netip.Addr) (uint32, error)
	// Out returns the interface for packets to an address, and the source address of this machine's own packets to it.
	Out(to netip.Addr) (device string, source netip.Addr, err error)
	// Masquerade returns the source address of masqueraded packets to an address.
	Masquerade(to netip.Addr) (netip.Addr, error)
}

// Outcome is the result for a packet.
type Outcome string

// The outcomes.
const (
	// Untouched: no rule of the table affects it.
	Untouched Outcome = "untouched"
	// Translated: it is sent to an endpoint.
	Translated Outcome = "translated"
	// Passed: it is passed on, unchanged, to the node of its endpoint (direct server return).
	Passed Outcome = "passed on"
	// Refused: the sender gets an error at once.
	Refused Outcome = "refused"
	// Dropped: the sender gets no answer.
	Dropped Outcome = "dropped"
	// Unknown: a rule has an expression that this package cannot evaluate.
	Unknown Outcome = "unknown"
)

// Way is one possible path of a packet.
type Way struct {
	Probability float64 `json:"probability"`
	Outcome     Outcome `json:"outcome"`
	// To is the final destination. Source is the source address that the receiver sees.
	To     netip.AddrPort `json:"to"`
	Source netip.Addr     `json:"source"`
	// Masqueraded is true if Source is this machine's address instead of the sender's.
	Masqueraded bool `json:"masqueraded"`
	// Here is true if the destination is this machine. NoRoute is true if this machine has no route to the destination.
	Here    bool `json:"here,omitempty"`
	NoRoute bool `json:"noRoute,omitempty"`
	// How is the kind of error that the sender gets.
	How string `json:"how,omitempty"`
	// Why is the reason for this path in words. MasqueradedWhy is the reason for masquerading.
	Why            string `json:"message"`
	MasqueradedWhy string `json:"masqueradedMessage,omitempty"`
	// Steps lists the rules with an effect. Of several similar paths, only the first has steps.
	Steps []Step `json:"steps,omitempty"`
}

// Step is a rule with an effect on the packet.
type Step struct {
	Hook  string `json:"hook"`
	Chain string `json:"chain"`
	// Rule is the rule in nft's language with its comment.
	Rule    string `json:"rule"`
	Comment string `json:"comment,omitempty"`
	Facts   []Fact `json:"facts,omitempty"`
	// To is the next chain of the packet. Back is true if the packet may return from it.
	To   string `json:"to,omitempty"`
	Back bool   `json:"back,omitempty"`
}

// Fact is the result of a lookup, or an action of a rule.
type Fact struct {
	// Set, Key, Value and Comment describe an element. Missing is true if there was none.
	Set     string `json:"set,omitempty"`
	Key     string `json:"key,omitempty"`
	Value   string `json:"value,omitempty"`
	Comment string `json:"comment,omitempty"`
	Missing bool   `json:"missing,omitempty"`
	// Drawn is the number of possible values of a random number.
	Drawn uint32 `json:"drawn,omitempty"`
	// Hash is the hash of the client's address and, for some algorithms, its port.
	Hash *uint32 `json:"hash,omitempty"`
	// Did is the action, in words.
	Did string `json:"did,omitempty"`
}

// Trace is the result for a packet.
type Trace struct {
	Packet Packet `json:"-"`
	// Frontend is the name of the service port, or "".
	Frontend string `json:"frontend"`
	// Why is the reason why Follow evaluated no rule, or "".
	Why  string `json:"message,omitempty"`
	Ways []Way  `json:"ways"`
	// Hints lists other facts that may explain the result.
	Hints []string `json:"hints,omitempty"`
	// Also lists base chains of other tables on the packet's path that may drop or translate the packet.
	Also []string `json:"also,omitempty"`
}

// From returns a packet from a remote address or from an address of this machine. If the address is invalid, the packet
// has the source address that this machine chooses for the destination.
func From(from netip.Addr, to netip.AddrPort, protocol inet.Protocol, routes Routes) (Packet, error) {
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
