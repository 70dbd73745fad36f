package outcome

import "slices"

// Code is an outcome, as an index of [Rows].
type Code uint8

// The outcomes. The metrics and the pages have them in this order.
const (
	// None: no outcome.
	None Code = iota
	// Forwarded: translated to an endpoint.
	Forwarded
	// NoEndpoints: refused, because there is no endpoint.
	NoEndpoints
	// NoLocalEndpoints: dropped, because the policy is Local and no endpoint is on this node, or because no number
	// was left for the service port.
	NoLocalEndpoints
	// AtMaximum: refused or dropped, because the endpoints had reached their connection limit.
	AtMaximum
	// Held: dropped, because the Service scales to zero and has no endpoint; refused after a while.
	Held
	// SourceRange: dropped, because the source ranges of the Service do not admit the client.
	SourceRange
	// UnusedPort: refused, because the destination is an address of a Service, on a port that the Service does not
	// have.
	UnusedPort
	// UnusedAddress: the destination is an address of a ServiceCIDR that no Service has. Dropped, unless it is an
	// address of this node.
	UnusedAddress
	// NoNodeAddress: no address of this node serves node ports.
	NoNodeAddress
	// UnservedFamily: this node does not serve the IP family of the address.
	UnservedFamily
	// Conflict: another Service has the address and port.
	Conflict
	// Codes is the number of outcomes.
	Codes
)

// Row has the names, the words and the properties of an outcome.
type Row struct {
	// Reason is the name in the JSON of services, "" if a frontend cannot have this outcome for all connections.
	// Does describes the outcome there and on the status page.
	Reason, Does string
	// Fix is the smallest change after which connections to the frontend reach an endpoint. An outcome without a
	// fix is normal.
	Fix string
	// OfAddress is true if the cause is the address of the frontend, regardless of its endpoints.
	OfAddress bool

	// Label is the value of the label reason in the metrics, "" if no connection counts as refused or dropped for
	// this reason. Help is its meaning in the help text, "" if the label says it.
	Label, Help string
	// Counted are the elements that count such connections, for docs/maps.md.
	Counted string
	// OfPort is true if a service port or the node has the count, but a frontend does not.
	OfPort bool
	// Action is the answer of an administrator to many such connections, for docs/runbooks.md. The alert ignores an
	// outcome without an action.
	Action string

	// Refuses is true if the client may get an error at once, Drops if it may get no answer.
	Refuses, Drops bool
	// Words are the comment of the rules that decide about this outcome, and the reason in trace. They are "" if
	// the rules have several comments.
	Words string
}

// Rows are the rows of all outcomes.
var Rows = [Codes]Row{
	Forwarded: {Counted: "class `endpoints-of-3` and similar"},
	NoEndpoints: {
		Reason: "NoEndpoints", Does: "refused: no endpoint in the cluster can be used",
		Fix:   "make a pod of the Service ready: kubectl describe pod shows why it is not",
		Label: "no_endpoints", Counted: "class `reject-packet`", Action: "check the pods of the Service",
		Refuses: true, Words: "no endpoints",
	},
	NoLocalEndpoints: {
		Reason: "NoLocalEndpoints", Does: "dropped: policy Local, and no endpoint on this node can be used",
		Label: "no_local_endpoints", Help: "the traffic policy is Local and this node has no endpoint",
		Counted: "class `drop-packet`", Drops: true,
		Words: "there are endpoints, but none for this traffic: its policy is Local, and none of them is on this node",
	},
	AtMaximum: {
		Label: "max_connections", Help: "the endpoints have reached their connection limit",
		Counted: "`at-maximum`", OfPort: true,
		Action:  "add endpoints, or raise the [connection limit](algorithms.md#connection-limit)",
		Refuses: true, Drops: true, Words: "all endpoints have reached their connection limit",
	},
	Held: {
		Reason: "Held", Does: "held: no endpoint; the client retries, and is refused after 2m0s",
		Label: "held", Help: "the Service scales to zero and has no endpoints", Counted: "class `hold-packet`",
		Action:  "check the program that scales the Service [from zero](scale-to-zero.md), and the pods of the Service",
		Refuses: true, Drops: true, Words: "no endpoints: held, so that the client retries",
	},
	SourceRange: {
		Label: "source_range", Help: "the source ranges of the Service do not admit the source",
		Counted: "`services` minus `services-restricted`, and the same for `nodeports` and `ranges`", Drops: true,
		Action: "check `loadBalancerSourceRanges`, the [source ranges](source-ranges.md) of annotations, and clients",
	},
	UnusedPort: {
		Label: "unused_port", Help: "no Service uses that port of the address", Counted: "`unused-ports`", OfPort: true,
		Action: "find the client of a Service that has changed or was deleted", Refuses: true,
	},
	UnusedAddress: {
		Label: "unused_address", Help: "no Service uses that address", Counted: "`service-cidrs`", OfPort: true,
		Action: "find the client of a Service that has changed or was deleted", Drops: true,
		Words: "a service address that is not in use",
	},
	NoNodeAddress: {
		Reason: "NoNodeAddress", Does: "not served: no address of this node is in --nodeport-addresses",
		OfAddress: true,
		Fix: "add an address of this node to --nodeport-addresses (nodePortAddresses), " +
			"if clients need the node port here",
	},
	// A cluster may have nodes without IPv6, and status reports a node that lacks it by mistake: no fix.
	UnservedFamily: {
		Reason:    "UnservedFamily",
		Does:      "not served: this node does not serve the IP family; kube-nftproxy status -o wide has the reason",
		OfAddress: true,
	},
	// The name of the other Service follows.
	Conflict: {
		Reason: "Conflict", Does: "not programmed: already used by", OfAddress: true,
		Fix: "remove the address from one of the two Services, or change its port",
	},
}

// Of returns the outcome with a reason, or None.
func Of(reason string) Code {
	at := slices.IndexFunc(Rows[:], func(r Row) bool { return r.Reason == reason })
	return Code(max(at, 0))
}
