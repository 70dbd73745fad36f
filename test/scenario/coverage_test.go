package scenario

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// coverage records features that packets have shown, so that each feature has a scenario.
type coverage map[string]bool

var kinds = [...]model.Kind{model.ClusterIP, model.ExternalIP, model.LoadBalancer, model.NodePort}

// wanted lists the features that the suite must show.
func wanted() (list []string) {
	for _, f := range inet.Families {
		for _, k := range kinds {
			for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
				list = append(list, fmt.Sprintf("%s %s %s answers", k, p, f))
			}
			for _, what := range []string{
				"without endpoints refuses tcp", "without endpoints refuses udp", "with policy Local answers",
				"with policy Local drops", "with affinity answers", "hairpins", "masquerades",
			} {
				list = append(list, fmt.Sprintf("%s %s %s", k, f, what))
			}
			if k != model.ClusterIP {
				list = append(list, fmt.Sprintf("%s %s short-circuits", k, f))
			}
		}
		for _, what := range []string{
			"ClusterIP keeps a pod's address", "policy Local keeps a client's address", "policy Local with affinity answers",
			"source ranges allow", "source ranges drop", "undefined port is refused", "unused service address is dropped",
			"connection stays",
		} {
			list = append(list, fmt.Sprintf("%s %s", f, what))
		}
	}
	return list
}

// note records the features that a line of packets has shown.
func (c coverage) note(l line, state *fresh, cidrs []netip.Prefix) {
	f := inet.FamilyOf(l.to.Addr())
	port, front := state.find(l, f)
	if l.stays {
		c.add(f, "connection stays")
	}
	if front == nil {
		c.noteUnclaimed(l, state, f, cidrs)
		return
	}
	of := func(what string) { c[fmt.Sprintf("%s %s %s", front.Kind, f, what)] = true }
	switch l.outcome {
	case lab.Refused:
		if !port.HasEndpoints {
			of("without endpoints refuses " + l.protocol.String())
		}
	case lab.TimedOut:
		if port.HasEndpoints && front.Local && len(port.Local) == 0 {
			of("with policy Local drops")
		} else if front.Sources != nil && front.Sources.Allowed != nil {
			c.add(f, "source ranges drop")
		}
	case lab.Answered:
		c[fmt.Sprintf("%s %s %s answers", front.Kind, l.protocol, f)] = true
		c.noteAnswer(l, port, front, f, of)
	}
}

func (c coverage) noteAnswer(l line, port *model.ServicePort, front *model.Frontend, f inet.Family, of func(string)) {
	if front.Sources != nil && front.Sources.Allowed != nil {
		c.add(f, "source ranges allow")
	}
	if l.affinity {
		of("with affinity answers")
		if front.Local {
			c.add(f, "policy Local with affinity answers")
		}
	}
	outside := l.from == "client" || l.from == "client-1"
	if front.Local && (outside || front.Kind == model.ClusterIP) {
		of("with policy Local answers")
	}
	if front.Local && !outside && front.Kind != model.ClusterIP && len(port.Cluster) > len(port.Local) {
		of("short-circuits")
	}
	for _, s := range l.servers {
		switch {
		case s.name == l.from && s.name != "node" && s.seen == "node":
			of("hairpins")
		case s.seen == "node" && l.from != "node":
			of("masquerades")
		case s.seen == "kept" && !outside && l.from != "node" && front.Kind == model.ClusterIP:
			c.add(f, "ClusterIP keeps a pod's address")
		case s.seen == "kept" && outside && front.Local:
			c.add(f, "policy Local keeps a client's address")
		}
	}
}

// noteUnclaimed records a line to an address and port without a service port.
func (c coverage) noteUnclaimed(l line, state *fresh, f inet.Family, cidrs []netip.Prefix) {
	for _, s := range state.services {
		for _, p := range s.Ports {
			if l.outcome == lab.Refused && p.Frontends[0].Addr == l.to.Addr() {
				c.add(f, "undefined port is refused")
			}
		}
	}
	inside := slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(l.to.Addr()) })
	if l.outcome == lab.TimedOut && inside {
		c.add(f, "unused service address is dropped")
	}
}

func (c coverage) add(f inet.Family, what string) { c[fmt.Sprintf("%s %s", f, what)] = true }

// find returns the frontend for a line's packets.
func (f *fresh) find(l line, family inet.Family) (*model.ServicePort, *model.Frontend) {
	onNode := slices.Contains(f.nodeIPs[family], l.to.Addr())
	for _, s := range f.services {
		for _, p := range s.Ports {
			for i := range p.Frontends {
				k := p.Frontends[i].Key
				if k.Port == l.to.Port() && k.Protocol == l.protocol && k.Family == family &&
					(k.Addr == l.to.Addr() || !k.Addr.IsValid() && onNode) {
					return p, &p.Frontends[i]
				}
			}
		}
	}
	return nil, nil
}

// missing lists the features that no scenario has shown.
func (c coverage) missing() (list []string) {
	for _, w := range wanted() {
		if !c[w] {
			list = append(list, w)
		}
	}
	return list
}
