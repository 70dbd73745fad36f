package view

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// Services are the Services that this node serves.
type Services struct {
	Node string `json:"node"`
	// NodePortAddresses are the addresses of this node that serve node ports.
	NodePortAddresses []string `json:"nodePortAddresses"`
	// Unread are the kinds of objects that the program has not read yet. If there are any, the other fields are
	// incomplete.
	Unread []string `json:"unread,omitempty"`
	// Unanswered is the time since when the API server has not answered, in seconds; 0 while it answers. The objects
	// are those of the time before, or of a snapshot.
	Unanswered int64 `json:"unansweredSeconds,omitempty"`

	Services []Service `json:"services"`
	// NotFound has a message for each requested name or address without a served Service.
	NotFound []string `json:"notFound,omitempty"`
}

// Service is one Service as this node serves it.
type Service struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Ports     []ServicePort `json:"ports"`
	// HealthCheckNodePort is the port for load balancers' health checks. LocalReady is the number of ready local
	// endpoints by family.
	HealthCheckNodePort uint16         `json:"healthCheckNodePort,omitempty"`
	LocalReady          map[string]int `json:"localReady,omitempty"`
	// RefusesUnusedPorts are the load-balancer and external IPs that refuse connections to unused ports. AnswersPing
	// are the addresses that answer echo requests. Both have at most 100, and then the number of the others.
	RefusesUnusedPorts []string `json:"refusesUnusedPorts,omitempty"`
	AnswersPing        []string `json:"answersPing,omitempty"`
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
	AffinitySeconds int64 `json:"affinitySeconds,omitempty"`
	// Algorithm is the algorithm that selects endpoints; empty for random.
	Algorithm string `json:"algorithm,omitempty"`
	// DirectReturn is true with direct server return.
	DirectReturn bool `json:"directServerReturn,omitempty"`
	// MaxConnections is the connection limit of each endpoint through this node; 0 means none. AtMaximum is refuse or
	// queue. Full is the number of connections that found no place, of both IP families.
	MaxConnections int        `json:"maxConnections,omitempty"`
	AtMaximum      string     `json:"atMaximum,omitempty"`
	Full           uint64     `json:"full,omitempty"`
	Frontends      []Frontend `json:"frontends"`
	Endpoints      []Endpoint `json:"endpoints"`
	// Why is the reason why the port has no endpoints.
	Why string `json:"message,omitempty"`
}

// Frontend is one way to reach a service port.
type Frontend struct {
	// Address is an address with a port, or for a node port only the port. Port is the port as a number.
	Address string `json:"address"`
	Port    uint16 `json:"port,omitempty"`
	// Kind is ClusterIP, ExternalIP, LoadBalancer, NodePort or HostPort; Policy is Cluster or Local.
	Kind   string `json:"kind"`
	Policy string `json:"policy"`
	// Endpoints is the number of endpoints for new connections on this node.
	Endpoints int `json:"endpoints"`
	// Loopback is the loopback address that also serves a node port.
	Loopback string `json:"loopback,omitempty"`
	// LoopbackRefused is set for a UDP or SCTP node port that is refused on loopback, because only TCP node ports are
	// served there.
	LoopbackRefused bool `json:"loopbackRefused,omitempty"`
	// AllowedSources, if any, are the only sources that may connect.
	AllowedSources []string `json:"allowedSources,omitempty"`
	// DeniedSources cannot connect, even if AllowedSources has them.
	DeniedSources []string `json:"deniedSources,omitempty"`
	// Message describes the outcome of a new connection, unless the connection reaches an endpoint. Reason is the
	// reason of the outcome in one word. Normal is true if an administrator need not do anything about it.
	// [Frontend.SetOutcome] sets them.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Normal  bool   `json:"normal,omitempty"`
	// LostTo names the Service that has this address and port instead. [Frontend.Lose] sets it.
	LostTo string `json:"lostTo,omitempty"`
	// FromThisNode is the number of endpoints for this node's pods and processes, if policy Local applies only to other
	// clients.
	FromThisNode *int `json:"fromThisNode,omitempty"`
	// Connections is the number of new connections since the start, if the program counts connections. Refused is the
	// number of rejected and dropped connections, Dropped the number of dropped connections alone.
	Connections *uint64 `json:"connections,omitempty"`
	Refused     *uint64 `json:"refused,omitempty"`
	Dropped     uint64  `json:"dropped,omitempty"`
}

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Address string `json:"address"`
	Node    string `json:"node,omitempty"`
	// Zone is the zone in the EndpointSlice. It is set only if the program counts connections by zone.
	Zone  string `json:"zone,omitempty"`
	Slice string `json:"slice,omitempty"`
	// Pod is the name of the pod. It is known only for Services that are requested by name.
	Pod string `json:"pod,omitempty"`
	// Conditions are the conditions in the EndpointSlice, such as "ready".
	Conditions string `json:"conditions"`
	OnThisNode bool   `json:"onThisNode,omitempty"`
	// Cluster is true if policy Cluster uses the endpoint on this node, Local if policy Local does.
	Cluster bool `json:"cluster"`
	Local   bool `json:"local"`
	// Share is the endpoint's share of new connections in percent. It is 0 unless an algorithm or weights make shares
	// unequal. It applies to policy Cluster, or to policy Local if policy Cluster has no endpoints.
	Share float64 `json:"sharePercent,omitempty"`
	// Message is the reason why the endpoint is not used: by any policy of the port, or by one of its two policies.
	Message string `json:"message,omitempty"`
	// Tried is the result of a test connection from this node, if the command made one. Fails is true if the connection
	// failed.
	Tried string `json:"tried,omitempty"`
	Fails bool   `json:"fails,omitempty"`
}

// SetOutcome sets the outcome of new connections.
func (f *Frontend) SetOutcome(c outcome.Code) {
	row := &outcome.Rows[c]
	f.Message, f.Reason, f.Normal = row.Does, row.Reason, row.Fix == ""
}

// Lose sets the Service that has this address and port instead.
func (f *Frontend) Lose(to string) {
	f.SetOutcome(outcome.Conflict)
	f.LostTo, f.Message = to, f.Message+" "+to
}

// Chosen reports whether any frontend uses the endpoint.
func (e *Endpoint) Chosen() bool { return e.Cluster || e.Local }

// wrong reports whether the frontend works on no node. With policy Local on this node, or if the Service scales to
// zero, it may be without endpoints.
func (f *Frontend) wrong() bool { return f.LostTo != "" || f.Endpoints == 0 && !f.Normal }

// Frontends iterates over the frontends of the Service, with their ports.
func (s *Service) Frontends() iter.Seq2[*ServicePort, *Frontend] {
	return func(yield func(*ServicePort, *Frontend) bool) {
		for i := range s.Ports {
			p := &s.Ports[i]
			for j := range p.Frontends {
				if !yield(p, &p.Frontends[j]) {
					return
				}
			}
		}
	}
}

// Wrong reports whether the Service needs attention: a problem, an endpoint that no port can use, a port without
// endpoints, or an address that another Service has.
func (s *Service) Wrong() bool {
	for _, f := range s.Frontends() {
		if f.wrong() {
			return true
		}
	}
	return len(s.Problems)+len(s.Unusable) > 0
}

// OnlyWrong removes the Services that need no attention, and the frontends that work from the remaining Services.
func (v *Services) OnlyWrong() {
	v.Services = slices.DeleteFunc(v.Services, func(s Service) bool { return !s.Wrong() })
	for i := range v.Services {
		for j := range v.Services[i].Ports {
			p := &v.Services[i].Ports[j]
			p.Frontends = slices.DeleteFunc(p.Frontends, func(f Frontend) bool { return !f.wrong() })
		}
	}
}

// Wrong reports whether any of the Services needs attention.
func (v *Services) Wrong() bool {
	return len(v.Unread) > 0 || slices.ContainsFunc(v.Services, func(s Service) bool { return s.Wrong() })
}

func (s *Service) fullName() string { return s.Namespace + "/" + s.Name }

func (s *Service) portName(p *ServicePort) string {
	if p.Name == "" {
		return s.fullName()
	}
	return s.fullName() + ":" + p.Name
}

// Text writes one line for each frontend. A note about the frontend is below the line, or with Wide at its end.
func (v *Services) Text(p *Printer) {
	v.unread(p)
	header := []string{"SERVICE", "TYPE", "ADDRESS", "ENDPOINTS", "CONNECTIONS"}
	if p.Wide {
		header = append(header, "POLICY", "AFFINITY", "NOTE")
	}
	var rows [][]Cell
	for i := range v.Services {
		rows = append(rows, v.Services[i].rows(p.Wide)...)
	}
	p.Table(header, rows)
	if len(v.Services) > 0 && v.Wrong() && !p.Wide && !p.NoHeaders {
		p.Printf("\n%s\n", p.Paint(Dim, "kube-nftproxy services NAMESPACE/NAME shows each endpoint, and why it is "+
			"unused."))
	}
}

func (s *Service) rows(wide bool) (rows [][]Cell) {
	below := func(mark string, text string) {
		if text != "" {
			rows = append(rows, wrap("  ", mark+" "+text, Warn)...)
		}
	}
	for sp, f := range s.Frontends() {
		mark, style := "note:", Plain
		if f.wrong() {
			mark, style = "PROBLEM", Bad
		}
		row := append(cells(s.portName(sp), f.Kind, f.at(sp)), Cell{sp.count(f), style}, Cell{Text: connections(f)})
		if wide {
			row = append(row, cells(f.policy(), affinity(sp))...)
			rows = append(rows, append(row, Cell{f.note(sp, true), Warn}))
			continue
		}
		rows = append(rows, row)
		below(mark, f.note(sp, false))
	}
	if problems := s.problems(); len(problems) > 0 {
		if len(rows) == 0 {
			rows = append(rows, []Cell{{Text: s.fullName()}})
		}
		for _, problem := range problems {
			below("PROBLEM", problem)
		}
	}
	return rows
}

// onNode reports whether the frontend is a node port, or a host port at all addresses of the node.
func (f *Frontend) onNode() bool { return !strings.Contains(f.Address, ":") }

// at returns the address, port and protocol of a frontend. The address of a node port is *.
func (f *Frontend) at(sp *ServicePort) string {
	address := f.Address
	if f.onNode() {
		address = "*:" + address
	}
	return address + "/" + strings.ToUpper(sp.Protocol)
}

// policy returns the policy and, for policy Local, the traffic to which it applies.
func (f *Frontend) policy() string {
	switch {
	case f.Policy != "Local":
		return f.Policy
	case f.Kind == "ClusterIP":
		return "Local (internal)"
	}
	return "Local (external)"
}

// count returns the number of endpoints that a frontend uses, such as "2 of 3", or "3" if it uses all.
func (sp *ServicePort) count(f *Frontend) string {
	if f.Endpoints == len(sp.Endpoints) {
		return fmt.Sprint(f.Endpoints)
	}
	return fmt.Sprintf("%d of %d", f.Endpoints, len(sp.Endpoints))
}

// share returns the result of count with a noun, such as "2 of 3 endpoints".
func (sp *ServicePort) share(f *Frontend) string {
	if all := len(sp.Endpoints); f.Endpoints != all {
		return fmt.Sprintf("%d of %s", f.Endpoints, Count(all, "endpoint"))
	}
	return Count(f.Endpoints, "endpoint")
}

func affinity(sp *ServicePort) string {
	if sp.AffinitySeconds == 0 {
		return "-"
	}
	return "ClientIP " + duration.HumanDuration(time.Duration(sp.AffinitySeconds)*time.Second)
}

// maximum describes the connection limit; "" without one.
func (sp *ServicePort) maximum() string {
	if sp.MaxConnections == 0 {
		return ""
	}
	text := fmt.Sprintf("at most %s of each endpoint, then %s", Count(sp.MaxConnections, "connection"), sp.AtMaximum)
	if sp.Full > 0 {
		text += fmt.Sprintf(" (%d so far)", sp.Full)
	}
	return text
}

func connections(f *Frontend) string {
	if f.Connections == nil {
		return "-"
	}
	return fmt.Sprint(*f.Connections)
}

// failures returns the numbers of rejected and of dropped connections, or "".
func (f *Frontend) failures() string {
	var parts []string
	if f.Refused != nil && *f.Refused > f.Dropped {
		parts = append(parts, fmt.Sprintf("%d refused", *f.Refused-f.Dropped))
	}
	if f.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("%d dropped", f.Dropped))
	}
	return strings.Join(parts, ", ")
}

// note returns special properties of a frontend in one line.
func (f *Frontend) note(sp *ServicePort, wide bool) string {
	var parts []string
	if f.Message != "" {
		parts = append(parts, f.Message)
	}
	if n := f.failures(); n != "" {
		parts = append(parts, "connections: "+n)
	}
	if sp.Algorithm != "" {
		parts = append(parts, sp.Algorithm)
	}
	if most := sp.maximum(); most != "" {
		parts = append(parts, most)
	}
	if wide && f.Endpoints == 0 && sp.Why != "" {
		parts = append(parts, sp.Why)
	}
	if wide && f.FromThisNode != nil {
		parts = append(parts, "this node's pods and processes: "+Count(*f.FromThisNode, "endpoint"))
	}
	for _, s := range []struct {
		are  string
		list []string
	}{{"allowed", f.AllowedSources}, {"denied", f.DeniedSources}} {
		if len(s.list) == 0 {
			continue
		}
		list := Names(s.list, 0)
		if wide {
			list = strings.Join(s.list, ", ")
		}
		parts = append(parts, s.are+" sources: "+list)
	}
	return strings.Join(parts, "; ")
}

// problems returns the problems of the Service as a whole.
func (s *Service) problems() []string {
	if n := len(s.Unusable); n > 0 {
		return append(slices.Clip(s.Problems), Count(n, "endpoint")+" that no port can use")
	}
	return s.Problems
}

// Detail writes all details of each Service, with every endpoint, and the reason if it is not used.
func (v *Services) Detail(p *Printer) {
	v.unread(p)
	for i := range v.Services {
		if i > 0 {
			p.Printf("\n")
		}
		v.detail(p, &v.Services[i])
	}
	if !v.tried() && !v.Wrong() && v.served() {
		p.Printf("\n%s\n%s\n",
			p.Paint(Dim, "No problem found. If the Service does not work: --try connects to the endpoints from this "+
				"node,"),
			p.Paint(Dim, "kube-nftproxy trace FROM ADDRESS:PORT --live follows a packet, kube-nftproxy status checks "+
				"the node."))
	}
}

// served reports whether new connections to each frontend reach an endpoint.
func (v *Services) served() bool {
	for i := range v.Services {
		for _, f := range v.Services[i].Frontends() {
			if f.Reason != "" {
				return false
			}
		}
	}
	return true
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

// unread warns of objects that have not been read yet, or may have changed since.
func (v *Services) unread(p *Printer) {
	if since := time.Duration(v.Unanswered) * time.Second; since > 0 && len(v.Unread) == 0 && !p.NoHeaders {
		p.Printf("%s: the API server has not answered for %s, so this output has no changes since then; "+
			"kube-nftproxy status shows the reason\n\n", p.Paint(Warn, "MAY BE OUTDATED"), short(since))
	}
	if len(v.Unread) > 0 {
		p.Printf("%s %s: this output is incomplete, and does not describe the rules in the kernel; kube-nftproxy "+
			"status shows the reason\n\n",
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
		p.Printf("\n  health check node port %d, ready endpoints on this node: "+
			"%s\n", s.HealthCheckNodePort, byFamily("%[2]d %[1]s", s.LocalReady))
	}
	for _, list := range []struct {
		what  string
		addrs []string
	}{{"addresses that answer ping", s.AnswersPing}, {"addresses that refuse connections to unused ports, besides " +
		"cluster IPs", s.RefusesUnusedPorts}} {
		if len(list.addrs) > 0 {
			p.Printf("\n  %s: %s\n", list.what, strings.Join(list.addrs, ", "))
		}
	}
	if len(s.Problems)+len(s.Notes) > 0 {
		p.Printf("\n")
	}
	for _, problem := range s.Problems {
		p.Table(nil, wrap("", "PROBLEM "+s.fullName()+": "+problem, Warn))
	}
	for _, note := range s.Notes {
		p.Table(nil, wrap("  ", note, Plain))
	}
}

// byFamily formats numbers by IP family. The format has the family and the number.
func byFamily(format string, n map[string]int) string {
	var parts []string
	for _, f := range []string{"IPv4", "IPv6"} {
		if count, ok := n[f]; ok {
			parts = append(parts, fmt.Sprintf(format, f, count))
		}
	}
	return strings.Join(parts, ", ")
}

func (v *Services) portDetail(p *Printer, s *Service, sp *ServicePort) {
	p.Printf("\n  port %s, %s, %s", quotedPort(sp), sp.Protocol, sp.Family)
	if sp.AffinitySeconds > 0 {
		p.Printf(", session affinity for %d s", sp.AffinitySeconds)
	}
	if sp.Algorithm != "" {
		p.Printf(", %s", sp.Algorithm)
	}
	if sp.DirectReturn {
		p.Printf(", direct server return")
	}
	if most := sp.maximum(); most != "" {
		p.Printf(", %s", most)
	}
	p.Printf("\n")
	var rows [][]Cell
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		address := f.Address
		if f.onNode() {
			address += " on " + strings.Join(v.nodePortAddresses(sp.Family, f.Loopback), ", ")
		}
		style := Plain
		if f.wrong() {
			style = Bad
		}
		row := append(cells("    "+f.Kind, address, "policy "+f.policy()), Cell{sp.share(f), style})
		if f.Connections != nil {
			row = append(row, Cell{Text: Count(int(*f.Connections), "connection")})
		}
		rows = append(rows, row)
		if note := f.note(&ServicePort{}, true); note != "" {
			rows = append(rows, wrap("      ", note, Warn)...)
		}
	}
	p.Table(nil, rows)
	if len(sp.Endpoints) == 0 {
		p.Printf("    %s: %s\n", p.Paint(Bad, "no endpoints"), sp.Why)
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

// nodePortAddresses returns the addresses of one family that serve node ports, and the loopback address unless it is
// empty.
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
	pods := slices.ContainsFunc(list, func(e Endpoint) bool { return e.Pod != "" })
	shares := slices.ContainsFunc(list, func(e Endpoint) bool { return e.Share > 0 })
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
		if e.Zone != "" {
			where += ", zone " + e.Zone
		}
		row := []Cell{{"    " + mark + " " + e.Address, style}, {Text: e.Conditions}, {Text: where}}
		if pods {
			row = append(row, Cell{Text: "pod " + cmp.Or(e.Pod, "unknown")})
		}
		if shares {
			share := "-"
			if e.Share > 0 {
				share = fmt.Sprintf("%.1f %%", e.Share)
			}
			row = append(row, Cell{Text: share})
		}
		if wide {
			row = append(row, Cell{Text: "slice " + e.Slice})
		}
		if e.Tried != "" {
			row = append(row, Cell{e.Tried, map[bool]Style{true: Bad, false: Good}[e.Fails]})
		}
		rows = append(rows, append(row, Cell{Text: e.Message, Style: Warn}))
	}
	return rows
}
