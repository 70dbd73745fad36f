package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/oracle"
)

// goingOn is a UDP client that keeps sending, with its endpoint.
type goingOn struct {
	flow
	// endpoint is invalid if there was no reply. seen is the address that the endpoint sees.
	endpoint netip.AddrPort
	seen     netip.Addr
	packet   oracle.Packet
}

// forgetProbes removes the conntrack entries of probes in the calling thread's namespace: a later probe with the same port would
// follow the old entry.
func forgetProbes() error {
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, probes{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// probes matches conntrack entries other than those of flows that keep sending.
type probes struct{}

func (probes) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol != unix.IPPROTO_UDP || f.Forward.SrcPort < firstFlowPort
}

// goOn makes UDP clients send, in order.
func (a *performance) goOn(m *moment, truth *oracle.Oracle) *failure {
	for name, f := range a.flows {
		sends := slices.ContainsFunc(m.packets, func(q question) bool { return q.flow == name })
		if !sends && f.endpoint.IsValid() && !truth.MayGoOn(f.packet, f.endpoint) {
			a.endFlow(name) // its conntrack entry is deleted at an unknown time, before or after the endpoint returns
		}
	}
	settled := false
	for n, q := range m.packets {
		if q.flow == "" {
			continue
		}
		if !settled {
			if err := a.pipeline.settleFlows(); err != nil {
				return &failure{packet: n, kind: "error", text: err.Error()}
			}
			settled = true
		}
		if f := a.goOnOne(q, truth); f != nil {
			f.packet, f.kind = n, "flow: "+f.kind
			return f
		}
	}
	return nil
}

func (a *performance) goOnOne(q question, truth *oracle.Oracle) *failure {
	p, h := a.packet(q)
	known := a.flows[q.flow]
	if p.Port = uint16(firstFlowPort + a.begun); known != nil {
		p.Port = known.packet.Port
	}
	v := a.memory.Narrow(truth.Ask(p), p.From, time.Now())
	if few(v) {
		a.endFlow(q.flow) // it would take the place of another client
		return nil
	}
	if v.Affinity == 0 {
		v = v.ForNewClient()
	}
	passed := v.Outcome == oracle.Answered && v.Endpoints[0].Passed
	switch {
	case passed: // before connection tracking, so that a known flow does not stay, either
		defer a.endFlow(q.flow)
	case known == nil || !known.endpoint.IsValid():
	case !truth.MayGoOn(p, known.endpoint):
		a.moved++
	default:
		a.continued++
		v = oracle.Verdict{Outcome: oracle.Answered, Endpoints: []oracle.Endpoint{{AddrPort: known.endpoint, Sees: known.seen}}}
	}
	l, ok := a.lineOf(q, p, v)
	if v.Outcome == oracle.NotService || !ok {
		a.endFlow(q.flow) // its packet would create a conntrack entry without translation
		return nil
	}
	if v.Outcome == oracle.Answered && l.outcome == lab.TimedOut && !passed {
		// The endpoint cannot reply, for example because the client is on another node and is its own endpoint. The flow stays with
		// it for as long as it serves, independently of other clients' replies.
		a.endFlow(q.flow)
		return nil
	}
	if known == nil {
		conn, err := dialFlow(h, l, firstFlowPort+a.begun)
		if err != nil {
			return &failure{kind: "error", text: err.Error()}
		}
		a.begun++
		known = &goingOn{flow: flow{conn: conn}, packet: p}
		if a.flows == nil {
			a.flows = map[string]*goingOn{}
		}
		a.flows[q.flow] = known
	}
	a.keep(l)
	return a.ask(h, l, v, p, known)
}

// ask sends a datagram in a flow.
func (a *performance) ask(h *lab.Host, l line, v oracle.Verdict, p oracle.Packet, known *goingOn) *failure {
	wait := patience
	switch {
	case l.outcome == lab.TimedOut && a.thorough && a.last:
		wait = longSilence
	case l.outcome == lab.TimedOut:
		wait = shortSilence
	case a.thorough && a.last:
		wait = noAnswer
	}
	answer := known.ask(wait)
	known.endpoint = netip.AddrPort{}
	if answer.Outcome != l.outcome {
		return &failure{kind: fmt.Sprintf("%s instead of %s", answer.Outcome, l.outcome), text: fmt.Sprintf("%s: got %q (%v)", l.text, answer, answer.Err)}
	}
	s := server{}
	if l.outcome == lab.Answered {
		var err error
		if s, err = a.traffic.answer(h, l, answer); err != nil {
			return &failure{kind: "another answer", text: fmt.Sprintf("%s: %v", l.text, err)}
		}
		known.endpoint, known.seen = v.Endpoints[slices.Index(l.servers, s)].AddrPort, answer.Source.Addr()
		a.memory.Note(v, p.From, known.endpoint, time.Now())
	}
	a.count(l, v, s)
	return nil
}

func (a *performance) endFlow(name string) {
	if f := a.flows[name]; f != nil {
		_ = f.conn.Close() // nothing is lost
		delete(a.flows, name)
	}
}

func (a *performance) endFlows() {
	for name := range a.flows {
		a.endFlow(name)
	}
}
