package console

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// serviceView converts an explanation to a view.
func serviceView(x *model.Explanation, facts *proxy.Facts, lost map[claim]string) *view.Service {
	s := &view.Service{
		Namespace: x.Name.Namespace, Name: x.Name.Name, Ports: []view.ServicePort{}, HealthCheckNodePort: x.HealthCheckNodePort,
	}
	if x.HealthCheckNodePort != 0 {
		s.LocalReady = map[string]int{}
		for _, f := range inet.Families {
			if x.Serves(f) {
				s.LocalReady[f.String()] = x.LocalReady[f]
			}
		}
	}
	for _, p := range x.Problems {
		s.Problems = append(s.Problems, fmt.Sprintf("%s %s, %s: %s", p.Kind, p.Name, p.Field, p.Text()))
	}
	for i := range x.Others {
		s.Unusable = append(s.Unusable, endpointView(&x.Others[i], &model.PortExplanation{}))
	}
	asleep := x.Asleep()
	for i := range x.Ports {
		s.Ports = append(s.Ports, portView(&x.Ports[i], asleep, facts, lost))
	}
	return s
}

func portView(p *model.PortExplanation, asleep bool, facts *proxy.Facts, lost map[claim]string) view.ServicePort {
	v := view.ServicePort{
		Name: p.Name.Port, Protocol: p.Protocol.String(), Family: p.Family.String(), AffinitySeconds: int64(p.Affinity.Seconds()),
		Frontends: []view.Frontend{}, Endpoints: []view.Endpoint{}, Why: p.Why,
	}
	for i := range p.Frontends {
		f := frontendView(p, &p.Frontends[i], asleep, facts)
		if to := lost[claim{p.Name, p.Frontends[i].Key}]; to != "" {
			f.Lose(to)
		}
		v.Frontends = append(v.Frontends, f)
	}
	v.Algorithm = algorithm(p.ServicePort)
	v.DirectReturn = p.Direct != nil
	if p.Limited() {
		v.MaxConnections, v.AtMaximum = int(p.MaxConnections), string(p.AtMaximum)
	}
	shares := sharesOf(p.ServicePort)
	for i := range p.Candidates {
		e := endpointView(&p.Candidates[i], p)
		if e.Chosen() {
			e.Share = shares[p.Candidates[i].Addr]
		}
		v.Endpoints = append(v.Endpoints, e)
	}
	return v
}

// algorithm returns the name of the algorithm; "" for random.
func algorithm(p *model.ServicePort) string {
	if p.Method.Key == balance.Chance {
		return ""
	}
	return p.Method.String()
}

// sharesOf returns the share of new connections of each endpoint, in percent. It returns nil if all endpoints have the
// same share.
func sharesOf(p *model.ServicePort) map[netip.AddrPort]float64 {
	list, weights := p.Cluster, p.ClusterWeights
	if len(list) == 0 {
		list, weights = p.Local, p.LocalWeights
	}
	if p.Method.Key == balance.Chance && balance.Reduce(weights) == nil {
		return nil
	}
	shares, slots := map[netip.AddrPort]float64{}, p.Method.Fill(list, weights)
	for _, e := range slots {
		shares[e] += 100 / float64(len(slots))
	}
	return shares
}

var kindNames = [...]string{
	model.ClusterIP: "ClusterIP", model.ExternalIP: "ExternalIP", model.LoadBalancer: "LoadBalancer", model.NodePort: "NodePort",
	model.HostPort: "HostPort",
}

func frontendView(p *model.PortExplanation, f *model.Frontend, asleep bool, facts *proxy.Facts) view.Frontend {
	v := view.Frontend{Kind: kindNames[f.Kind], Port: f.Port, Policy: "Cluster", Endpoints: len(p.Cluster)}
	if f.Local {
		v.Policy, v.Endpoints = "Local", len(p.Local)
	}
	if f.Sources != nil {
		v.AllowedSources, v.DeniedSources = sourcesView(f.Sources.Allowed), sourcesView(f.Sources.Denied)
	}
	v.Address = f.Address()
	if !f.Addr.IsValid() {
		v.Address = fmt.Sprint(f.Port)
	}
	if f.Local && f.Kind != model.ClusterIP {
		v.FromThisNode = new(len(p.Cluster))
	}
	of := plan.FrontendOutcome(p.ServicePort, f, asleep)
	unaddressed := !f.Addr.IsValid() && len(facts.NodeAddresses[p.Family]) == 0
	if unaddressed && (of == outcome.None || of == outcome.NoLocalEndpoints) {
		of = outcome.NoNodeAddress
	}
	if of != outcome.None {
		v.SetOutcome(of)
	}
	return v
}

// sourcesView returns source ranges as text. An empty list is "none"; nil means that there is no list.
func sourcesView(ranges []model.AddrRange) []string {
	if ranges != nil && len(ranges) == 0 {
		return []string{"none"}
	}
	return texts(ranges)
}

// endpointView converts an endpoint. If one of the port's policies does not use the endpoint, it adds the reason.
func endpointView(c *model.Candidate, p *model.PortExplanation) view.Endpoint {
	e := view.Endpoint{
		Node: c.Node, Zone: c.Zone, Slice: c.Slice, OnThisNode: c.OnThisNode, Conditions: conditions(c),
		Cluster: p.UsesCluster && c.NotCluster == "", Local: p.UsesLocal && c.NotLocal == "",
	}
	switch {
	case !c.Addr.IsValid():
		e.Address = "(no address)"
	case c.Addr.Port() == 0:
		e.Address = c.Addr.Addr().String()
	default:
		e.Address = c.Addr.String()
	}
	switch {
	case e.Cluster && (e.Local || !p.UsesLocal), e.Local && !p.UsesCluster:
	case e.Cluster:
		e.Message = "not for policy Local: " + c.NotLocal
	case e.Local:
		e.Message = "not for policy Cluster: " + c.NotCluster
	case !p.UsesCluster && p.UsesLocal && c.NotCluster == "":
		e.Message = "policy Local: " + c.NotLocal
	default:
		e.Message = cmp.Or(c.NotCluster, c.NotLocal)
	}
	return e
}

// conditions returns an endpoint's conditions in a few words.
func conditions(c *model.Candidate) string {
	var words []string
	if c.Ready {
		words = append(words, "ready")
	} else {
		words = append(words, "not ready")
	}
	if c.Terminating {
		words = append(words, "terminating")
	}
	if c.Serving && c.Terminating && !c.Ready {
		words = append(words, "serving")
	}
	return strings.Join(words, ", ")
}
