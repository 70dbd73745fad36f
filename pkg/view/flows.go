package view

import "fmt"

// Flows are entries of connection tracking that contradict the present endpoints of Services.
type Flows struct {
	// Read is the number of entries that were read. Partial is true if entries may be missing, because the kernel
	// interrupted each attempt.
	Read    int  `json:"read"`
	Partial bool `json:"partial,omitempty"`
	// Stale are the first flows that the program should have deleted. StaleTotal is the number of all such flows.
	Stale      []Flow `json:"stale,omitempty"`
	StaleTotal int    `json:"staleTotal"`
	// Removed are the first established TCP connections to endpoints that no EndpointSlice has any more. RemovedTotal
	// is the number of all. The program terminates these connections only with --terminate-connections, and only if the
	// endpoint left while the program ran.
	Removed      []Flow `json:"removed,omitempty"`
	RemovedTotal int    `json:"removedTotal"`
}

// Flow is an entry of connection tracking.
type Flow struct {
	Protocol string `json:"protocol"`
	Client   string `json:"client"`
	// Frontend is the address to which the client sends. Endpoint is the address that receives the packets.
	Frontend string `json:"frontend"`
	Endpoint string `json:"endpoint"`
	Service  string `json:"service"`
	// Replied is true after a packet in the other direction.
	Replied bool `json:"replied"`
}

// String returns the flow in words.
func (f *Flow) String() string {
	to := "to " + f.Endpoint
	if f.Endpoint == f.Frontend {
		to = "not translated"
	}
	return fmt.Sprintf("%s, %s: %s -> %s, %s", f.Service, f.Protocol, f.Client, f.Frontend, to)
}

// findings returns the findings about the flows of a node.
func (f *Flows) findings(node string) (list Findings) {
	if f.StaleTotal > 0 {
		list.Add(Wrong, FlowsStale, "Service "+f.Stale[0].Service,
			plural(f.StaleTotal, "entry of connection tracking contradicts", "entries of connection tracking contradict")+" the present endpoints",
			"the packets of these clients reach removed endpoints, or none, while the clients keep sending",
			fmt.Sprintf("on node %s, for one flow: %s. The log of the program has the reason if it cannot delete "+
				"entries", node, f.Stale[0].deletion()),
			"only the client "+f.Stale[0].Client+": its next packet is translated again")
	}
	if f.RemovedTotal > 0 {
		list.Add(Note, FlowsToRemovedEndpoints, "Service "+f.Removed[0].Service,
			fmt.Sprintf("%s to endpoints that no EndpointSlice has", plural(f.RemovedTotal, "established TCP connection leads", "established TCP connections lead")),
			"none if the pods still run. Otherwise the clients wait for an answer until they time out. By default, "+
				"as kube-proxy, the program does not terminate established connections",
			"restart or reconnect the client "+f.Removed[0].Client+". For the future, set "+
				"--terminate-connections=gone, or the Service's annotation",
			"only this client")
	}
	return list
}

// deletion returns the command that deletes the entry of one flow.
func (f *Flow) deletion() string {
	source, sourcePort := splitPort(f.Client)
	to, port := splitPort(f.Frontend)
	return fmt.Sprintf("conntrack -D -p %s -s %s -d %s --sport %s --dport %s", f.Protocol, source, to, sourcePort, port)
}

// text writes the flows.
func (f *Flows) text(p *Printer) {
	style := Good
	word := "OK"
	if f.StaleTotal > 0 {
		style, word = Bad, "STALE"
	}
	p.Printf("%s: of %s of connection tracking, %s stale, and %s to removed "+
		"endpoints.\n", p.Paint(style, word), plural(f.Read, "entry", "entries"),
		plural(f.StaleTotal, "is", "are"), plural(f.RemovedTotal, "leads", "lead"))
	if f.Partial {
		p.Printf("The kernel interrupted each attempt to read connection tracking: entries may be missing.\n")
	}
	show := func(word Painted, list []Flow, total int) {
		for i := range list {
			p.Printf("%s %s\n", word, &list[i])
		}
		p.more(total - len(list))
	}
	show(p.Paint(Bad, "STALE"), f.Stale, f.StaleTotal)
	show(p.Paint(Dim, "REMOVED ENDPOINT"), f.Removed, f.RemovedTotal)
}
