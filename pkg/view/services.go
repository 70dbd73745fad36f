package view

import (
	"fmt"
	"slices"
	"strings"
)

// Services are the Services that this node serves.
type Services struct {
	Node string `json:"node"`
	// NodePortAddresses are the addresses of this node that serve node ports.
	NodePortAddresses []string `json:"nodePortAddresses"`
	// Unread are the kinds of objects that were not read yet, so that the rest is incomplete.
	Unread   []string  `json:"unread,omitempty"`
	Services []Service `json:"services"`
}

// Service is one Service as this node serves it.
type Service struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Ports     []ServicePort `json:"ports"`
	// HealthCheckNodePort is the port for load balancers' health checks, LocalReady the number of ready local endpoints by family.
	HealthCheckNodePort uint16         `json:"healthCheckNodePort,omitempty"`
	LocalReady          map[string]int `json:"localReady,omitempty"`
	// Unusable are endpoints that no port can use.
	Unusable []Endpoint `json:"unusable,omitempty"`
	// Problems are parts of the Service or its EndpointSlices that are not programmed.
	Problems []string `json:"problems,omitempty"`
	// Notes are other facts, such as addresses that are not served here.
	Notes []string `json:"notes,omitempty"`
}

// ServicePort is one port of a Service in one family.
type ServicePort struct {
	// Name is empty if the Service has a single unnamed port.
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	// AffinitySeconds is the timeout of ClientIP session affinity; 0 means none.
	AffinitySeconds int64      `json:"affinitySeconds,omitempty"`
	Frontends       []Frontend `json:"frontends"`
	Endpoints       []Endpoint `json:"endpoints"`
	// Why is the reason why the port has no endpoints.
	Why string `json:"why,omitempty"`
}

// Frontend is one way to reach a service port.
type Frontend struct {
	// Address is an address with a port, or for a node port only the port.
	Address string `json:"address"`
	// Kind is ClusterIP, ExternalIP, LoadBalancer or NodePort; Policy is Cluster or Local.
	Kind   string `json:"kind"`
	Policy string `json:"policy"`
	// Endpoints is the number of endpoints for new connections on this node.
	Endpoints int `json:"endpoints"`
	// Loopback is the loopback address on which a node port is served, too.
	Loopback string `json:"loopback,omitempty"`
	// LoopbackRefused is set for a UDP or SCTP node port that is refused on loopback, because only TCP node ports are served there.
	LoopbackRefused bool `json:"loopbackRefused,omitempty"`
	// AllowedSources, if any, are the only sources that may connect.
	AllowedSources []string `json:"allowedSources,omitempty"`
	// Does describes the result for a new connection if it is not obvious. DoesReason is its code.
	Does       string `json:"does,omitempty"`
	DoesReason Does   `json:"doesReason,omitempty"`
	// LostTo names the Service that has this address and port instead.
	LostTo string `json:"lostTo,omitempty"`
	// FromThisNode is the number of endpoints for this node's pods and processes, if the policy is Local only for others.
	FromThisNode *int `json:"fromThisNode,omitempty"`
	// Connections is the number of new connections so far, Refused that of rejected or dropped ones, if they are counted.
	Connections *uint64 `json:"connections,omitempty"`
	Refused     *uint64 `json:"refused,omitempty"`
}

// Does is the code of the result for a new connection.
type Does string

// The results.
const (
	// NoEndpoints: no endpoint in the cluster can be used, and the connection is refused.
	NoEndpoints Does = "NoEndpoints"
	// NoLocalEndpoints: the policy is Local, no endpoint on this node can be used, and the connection is dropped. This is normal.
	NoLocalEndpoints Does = "NoLocalEndpoints"
	// NoNodeAddress: no address of this node serves node ports.
	NoNodeAddress Does = "NoNodeAddress"
)

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Address string `json:"address"`
	Node    string `json:"node,omitempty"`
	Slice   string `json:"slice,omitempty"`
	// Conditions are the conditions in the EndpointSlice, such as "ready".
	Conditions string `json:"conditions"`
	OnThisNode bool   `json:"onThisNode,omitempty"`
	// Cluster and Local are true if policies Cluster and Local use it on this node.
	Cluster bool `json:"cluster"`
	Local   bool `json:"local"`
	// WhyNot is the reason why no used policy, or one of two, uses it.
	WhyNot string `json:"whyNot,omitempty"`
	// Tried is the result of a connection to it from this node, if there was one. Fails is true if the connection failed.
	Tried string `json:"tried,omitempty"`
	Fails bool   `json:"fails,omitempty"`
}

// Chosen reports whether any frontend uses the endpoint.
func (e *Endpoint) Chosen() bool { return e.Cluster || e.Local }

// Wrong reports whether the Service needs attention: a port without endpoints, a problem, a lost address. With policy Local, a node
// without an endpoint is normal.
func (s *Service) Wrong() bool {
	if len(s.Problems)+len(s.Unusable) > 0 {
		return true
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			if f.LostTo != "" || f.Endpoints == 0 && f.DoesReason != NoLocalEndpoints {
				return true
			}
		}
	}
	return false
}

// Wrong reports whether any of the Services needs attention.
func (v *Services) Wrong() bool {
	if len(v.Unread) > 0 {
		return true
	}
	for i := range v.Services {
		if v.Services[i].Wrong() {
			return true
		}
	}
	return false
}

func (s *Service) fullName() string { return s.Namespace + "/" + s.Name }

func (s *Service) portName(p *ServicePort) string {
	if p.Name == "" {
		return s.fullName()
	}
	return s.fullName() + ":" + p.Name
}

// Text writes one line for each frontend, and below it the unused endpoints with reasons; wide adds the used ones.
func (v *Services) Text(p *Printer) {
	v.unread(p)
	var rows [][]Cell
	for i := range v.Services {
		s := &v.Services[i]
		for j := range s.Ports {
			rows = append(rows, s.portRows(&s.Ports[j], p.Wide)...)
		}
	}
	header := []string{"SERVICE", "ADDRESS", "PROTOCOL", "KIND", "POLICY", "ENDPOINTS", "AFFINITY", "CONNECTIONS", "NOTE"}
	p.Table(header, rows)
	for i := range v.Services {
		v.Services[i].problems(p)
	}
	if len(rows) == 0 {
		p.Printf("No Services.\n")
	}
	if v.Wrong() && !p.Wide {
		p.Printf("\n%s\n", p.Paint(Dim, "kube-nftproxy services NAMESPACE/NAME shows each endpoint of a Service, and why it is not used."))
	}
}

func (s *Service) portRows(sp *ServicePort, wide bool) (rows [][]Cell) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		rows = append(rows, append(cells(s.portName(sp), f.Address, sp.Protocol, f.Kind, f.Policy),
			Cell{sp.count(f), countStyle(f.Endpoints)}, Cell{Text: affinity(sp)}, Cell{Text: connections(f)}, Cell{f.note(sp, wide), Warn}))
	}
	return rows
}

// count returns the share of endpoints that a frontend uses, such as 2 of 3.
func (sp *ServicePort) count(f *Frontend) string {
	if f.Endpoints == len(sp.Endpoints) {
		return fmt.Sprint(f.Endpoints)
	}
	return fmt.Sprintf("%d of %d", f.Endpoints, len(sp.Endpoints))
}

// share returns the same in words, such as 2 of 3 endpoints.
func (sp *ServicePort) share(f *Frontend) string {
	if all := len(sp.Endpoints); f.Endpoints != all {
		return fmt.Sprintf("%d of %s", f.Endpoints, Count(all, "endpoint"))
	}
	return Count(f.Endpoints, "endpoint")
}

func countStyle(n int) Style {
	if n == 0 {
		return Bad
	}
	return Plain
}

func affinity(sp *ServicePort) string {
	if sp.AffinitySeconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%ds", sp.AffinitySeconds)
}

func connections(f *Frontend) string {
	switch {
	case f.Connections == nil:
		return "-"
	case f.Refused != nil && *f.Refused > 0:
		return fmt.Sprintf("%d, %d refused", *f.Connections, *f.Refused)
	}
	return fmt.Sprint(*f.Connections)
}

// note returns special properties of a frontend in one line.
func (f *Frontend) note(sp *ServicePort, wide bool) string {
	var parts []string
	if f.LostTo != "" {
		parts = append(parts, "not programmed: already used by "+f.LostTo)
	}
	if f.Does != "" {
		parts = append(parts, f.Does)
	}
	if wide && f.Endpoints == 0 && sp.Why != "" {
		parts = append(parts, sp.Why)
	}
	if wide && f.FromThisNode != nil {
		parts = append(parts, "this node's pods and processes: "+Count(*f.FromThisNode, "endpoint"))
	}
	if n := len(f.AllowedSources); n > 0 {
		const few = 2
		list := strings.Join(f.AllowedSources[:min(n, few)], ", ")
		if wide {
			list = strings.Join(f.AllowedSources, ", ")
		} else if n > few {
			list += fmt.Sprintf(" and %d more", n-few)
		}
		parts = append(parts, "allowed sources: "+list)
	}
	return strings.Join(parts, "; ")
}

func (s *Service) problems(p *Printer) {
	for _, problem := range s.Problems {
		p.Printf("%s %s: %s\n", p.Paint(Warn, "PROBLEM"), s.fullName(), Printable(problem))
	}
}

// Detail writes all details of each Service, with every endpoint and the reason against it.
func (v *Services) Detail(p *Printer) {
	v.unread(p)
	for i := range v.Services {
		if i > 0 {
			p.Printf("\n")
		}
		v.detail(p, &v.Services[i])
	}
	if !v.tried() && !v.Wrong() {
		p.Printf("\n%s\n", p.Paint(Dim, "No problem found. If the Service does not work: --try connects to the endpoints from this node,\n"+
			"kube-nftproxy trace FROM ADDRESS:PORT --live follows a packet, kube-nftproxy status checks the node."))
	}
}

// tried reports whether connections to endpoints were tried.
func (v *Services) tried() bool {
	for i := range v.Services {
		for j := range v.Services[i].Ports {
			if slices.ContainsFunc(v.Services[i].Ports[j].Endpoints, func(e Endpoint) bool { return e.Tried != "" }) {
				return true
			}
		}
	}
	return false
}

// unread warns of objects that have not been read yet.
func (v *Services) unread(p *Printer) {
	if len(v.Unread) > 0 {
		p.Printf("%s %s: nothing is programmed yet, and this output may be incomplete; kube-nftproxy status shows the reason\n\n",
			p.Paint(Bad, "NOT READ YET"), strings.Join(v.Unread, ", "))
	}
}

func (v *Services) detail(p *Printer, s *Service) {
	p.Printf("%s %s\n", p.Paint(Bold, "Service"), s.fullName())
	if len(s.Ports) == 0 {
		p.Printf("  none of its ports can be served\n")
	}
	for j := range s.Ports {
		v.portDetail(p, s, &s.Ports[j])
	}
	if len(s.Unusable) > 0 {
		p.Printf("\n  endpoints that cannot be used for any port:\n")
		p.Table(nil, endpointRows(s.Unusable, false))
	}
	if s.HealthCheckNodePort != 0 {
		p.Printf("\n  health check node port %d, ready endpoints on this node: %s\n", s.HealthCheckNodePort, families(s.LocalReady))
	}
	if len(s.Problems)+len(s.Notes) > 0 {
		p.Printf("\n")
	}
	s.problems(p)
	for _, note := range s.Notes {
		p.Printf("  %s\n", Printable(note))
	}
}

func families(n map[string]int) string {
	var parts []string
	for _, f := range []string{"IPv4", "IPv6"} {
		if count, ok := n[f]; ok {
			parts = append(parts, fmt.Sprintf("%d %s", count, f))
		}
	}
	return strings.Join(parts, ", ")
}

func (v *Services) portDetail(p *Printer, s *Service, sp *ServicePort) {
	p.Printf("\n  port %s, %s, %s", quotedPort(sp), sp.Protocol, sp.Family)
	if sp.AffinitySeconds > 0 {
		p.Printf(", session affinity for %d s", sp.AffinitySeconds)
	}
	p.Printf("\n")
	var rows [][]Cell
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		address := f.Address
		if f.Kind == "NodePort" {
			address += " on " + strings.Join(v.nodePortAddresses(sp.Family, f.Loopback), ", ")
		}
		row := append(cells("    "+f.Kind, address, "policy "+f.Policy), Cell{sp.share(f), countStyle(f.Endpoints)})
		if f.Connections != nil {
			row = append(row, Cell{Text: connections(f) + " connections"})
		}
		rows = append(rows, append(row, Cell{f.note(&ServicePort{}, true), Warn}))
	}
	p.Table(nil, rows)
	if len(sp.Endpoints) == 0 {
		p.Printf("    %s: %s\n", p.Paint(Bad, "no endpoints"), Printable(sp.Why))
		return
	}
	p.Table(nil, endpointRows(sp.Endpoints, p.Wide))
}

func quotedPort(sp *ServicePort) string {
	if sp.Name == "" {
		return "without a name"
	}
	return sp.Name
}

// nodePortAddresses returns those of a family, and the address on loopback unless it is empty.
func (v *Services) nodePortAddresses(family, loopback string) (list []string) {
	for _, a := range v.NodePortAddresses {
		if strings.Contains(a, ":") == (family == "IPv6") {
			list = append(list, a)
		}
	}
	if loopback != "" {
		list = append(list, loopback)
	}
	if len(list) == 0 {
		return []string{"no address of this node"}
	}
	return list
}

func endpointRows(list []Endpoint, wide bool) (rows [][]Cell) {
	for i := range list {
		e := &list[i]
		mark, style := "-", Warn
		if e.Chosen() {
			mark, style = "+", Good
		}
		where := "on " + e.Node
		switch {
		case e.OnThisNode:
			where = "on this node"
		case e.Node == "":
			where = "on an unknown node"
		}
		row := []Cell{{"    " + mark + " " + e.Address, style}, {Text: e.Conditions}, {Text: where}}
		if wide {
			row = append(row, Cell{Text: e.Slice})
		}
		if e.Tried != "" {
			row = append(row, Cell{e.Tried, map[bool]Style{true: Bad, false: Good}[e.Fails]})
		}
		rows = append(rows, append(row, Cell{Text: e.WhyNot, Style: Warn}))
	}
	return rows
}
