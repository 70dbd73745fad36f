package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// Cause is a reason why a Service needs attention.
type Cause struct {
	What string `json:"what"`
	// Fix is the smallest change that removes the cause.
	Fix string `json:"fix"`
}

// mostCauses is the limit of listed causes: a tenant can write a Service with thousands.
const mostCauses = 6

// Causes returns the first reasons why [Service.Wrong] is true, each once: the problems, the ports without endpoints,
// the addresses that another Service has, and the endpoints that no port can use. If there are more, the last cause
// says so.
func (s *Service) Causes() (list []Cause) {
	add := func(fix, format string, args ...any) {
		if len(list) > mostCauses {
			return
		}
		switch c := (Cause{fmt.Sprintf(format, args...), fix}); {
		case slices.Contains(list, c):
		case len(list) == mostCauses:
			list = append(list, Cause{"there are more causes", "kube-nftproxy services " + s.fullName() + " shows all"})
		default:
			list = append(list, c)
		}
	}
	for _, text := range s.Problems {
		add("correct this part of the object", "%s", text)
	}
	for p, f := range s.Frontends() {
		switch row := &outcome.Rows[outcome.Of(f.Reason)]; {
		case !f.wrong():
		case row.OfAddress:
			add(row.Fix, "%s/%s: %s", f.Address, strings.ToUpper(p.Protocol), f.Message)
		case p.Why != "":
			add("compare the selector, targetPort and ipFamilies of the Service with its "+
				"pods", "port %s: no endpoints: %s", quotedPort(p), p.Why)
		default:
			add(row.Fix, "port %s: %s", quotedPort(p), p.unused(f))
		}
	}
	if len(list) > 0 && len(s.Ports) > 0 && s.Ports[0].Why != "" {
		return list // the reason of the port is also the reason of its unusable endpoints
	}
	for i := range s.Unusable {
		add("correct the EndpointSlice, or the part of the Service that it comes from", "endpoint %s: %s",
			s.Unusable[i].Address, s.Unusable[i].Message)
	}
	return list
}

// unused returns the result for a new connection, and the reason why the first endpoint is not used.
func (p *ServicePort) unused(f *Frontend) string {
	if len(p.Endpoints) == 0 {
		return f.Message
	}
	e := &p.Endpoints[0]
	return fmt.Sprintf("%s (%s; the first, %s: %s)", f.Message, Count(len(p.Endpoints), "endpoint"), e.Address, e.Message)
}
