package view

import (
	"cmp"
	"slices"
	"strings"
)

// Severity is the severity of a finding.
type Severity string

// The severities. A finding with the severity Wrong makes the node unhealthy, and the exit code is 1. A warning may be
// intended.
const (
	Wrong   Severity = "wrong"
	Warning Severity = "warning"
	Note    Severity = "note"
)

var severities = []Severity{Wrong, Warning, Note}

// Reason is the stable code of a finding. Scripts compare it; the words of a finding may change.
type Reason string

// The reasons. docs/findings.md describes each.
const (
	// The program.
	LoopBusy               Reason = "LoopBusy"
	ChangesWaiting         Reason = "ChangesWaiting"
	WaitingForObjects      Reason = "WaitingForObjects"
	SyncFailing            Reason = "SyncFailing"
	ServingAlone           Reason = "ServingAlone"
	StandingBy             Reason = "StandingBy"
	OlderInstance          Reason = "OlderInstance"
	TablesFoughtOver       Reason = "TablesFoughtOver"
	TablesTouched          Reason = "TablesTouched"
	PortNotBound           Reason = "PortNotBound"
	ConfigurationUnread    Reason = "ConfigurationUnread"
	ConfigurationNotUsed   Reason = "ConfigurationNotUsed"
	ConfigurationIgnored   Reason = "ConfigurationIgnored"
	ClusterCIDRMissing     Reason = "ClusterCIDRMissing"
	PodsOutsideClusterCIDR Reason = "PodsOutsideClusterCIDR"
	PodsByOtherInterfaces  Reason = "PodsByOtherInterfaces"
	FamilyNotServed        Reason = "FamilyNotServed"
	FamilyAppeared         Reason = "FamilyAppeared"
	CheckFailed            Reason = "CheckFailed"
	KubeProxyRunning       Reason = "KubeProxyRunning"
	KubeProxyUnknown       Reason = "KubeProxyUnknown"
	KubeProxyLeftovers     Reason = "KubeProxyLeftovers"

	// The kernel, as verify sees it.
	TablesDiffer            Reason = "TablesDiffer"
	FlowsStale              Reason = "FlowsStale"
	FlowsToRemovedEndpoints Reason = "FlowsToRemovedEndpoints"

	// The source of objects.
	APIServerUnreachable Reason = "APIServerUnreachable"
	APIServerFailing     Reason = "APIServerFailing"
	APIForbidden         Reason = "APIForbidden"
	APIUnauthorized      Reason = "APIUnauthorized"
	TokenUnusable        Reason = "TokenUnusable"
	WatchFailing         Reason = "WatchFailing"
	ServingSnapshot      Reason = "ServingSnapshot"
	SnapshotFailed       Reason = "SnapshotFailed"
	ManifestRejected     Reason = "ManifestRejected"
	ObjectRejected       Reason = "ObjectRejected"
	AddressConflict      Reason = "AddressConflict"
	HealthCheckPortTaken Reason = "HealthCheckPortTaken"
	LoopbackPortTaken    Reason = "LoopbackPortTaken"
	AffinityFull         Reason = "AffinityFull"
	NodeMissing          Reason = "NodeMissing"
	NodeBeingDeleted     Reason = "NodeBeingDeleted"
	NodeAddressElsewhere Reason = "NodeAddressElsewhere"
	NodeAddressUnknown   Reason = "NodeAddressUnknown"
	NodeOutsideNetworks  Reason = "NodeOutsideNetworks"

	// The node.
	ForwardingDisabled          Reason = "ForwardingDisabled"
	InterfaceForwardingDisabled Reason = "InterfaceForwardingDisabled"
	ForwardPolicyDrop           Reason = "ForwardPolicyDrop"
	OtherChainFirst             Reason = "OtherChainFirst"
	ReversePathStrict           Reason = "ReversePathStrict"
	ServiceCIDROverlap          Reason = "ServiceCIDROverlap"
	ConntrackFull               Reason = "ConntrackFull"
	NeighboursFull              Reason = "NeighboursFull"
	ConntrackStrict             Reason = "ConntrackStrict"
	ConntrackNotLoose           Reason = "ConntrackNotLoose"
	BridgeBypassesRules         Reason = "BridgeBypassesRules"
	NodePortTaken               Reason = "NodePortTaken"
	NodePortEphemeral           Reason = "NodePortEphemeral"
	SlowCommits                 Reason = "SlowCommits"
	MasqueradeSource            Reason = "MasqueradeSource"
	LoopbackExposed             Reason = "LoopbackExposed"

	// Before an installation.
	KernelTooOld            Reason = "KernelTooOld"
	ModulesMissing          Reason = "ModulesMissing"
	PortInUse               Reason = "PortInUse"
	NetworkNotFound         Reason = "NetworkNotFound"
	NetworkServesServices   Reason = "NetworkServesServices"
	NetworkWatchesKubeProxy Reason = "NetworkWatchesKubeProxy"
	FirewallFound           Reason = "FirewallFound"
)

// Finding is a fact about the program or its node that breaks Services or may break them.
type Finding struct {
	Severity Severity `json:"severity"`
	Reason   Reason   `json:"reason"`
	// Object is the object that the finding is about, with its kind: "Node node-1", "Service default/web", "chain
	// forward of table inet x".
	Object string `json:"object"`
	// What is the fact, and Impact is its effect on Services.
	What   string `json:"what"`
	Impact string `json:"impact"`
	// Fix is the smallest change that removes the cause. Affects lists everything else that this change affects.
	Fix     string `json:"fix"`
	Affects string `json:"affects"`
}

// Findings is a list of findings.
type Findings []Finding

// NewFinding returns a finding. The texts have the order of the output: the fact, its impact, the fix, and everything
// else that the fix affects.
func NewFinding(severity Severity, reason Reason, object, what, impact, fix, affects string) Finding {
	return Finding{severity, reason, object, what, impact, fix, affects}
}

// Add adds a new finding to the list.
func (l *Findings) Add(severity Severity, reason Reason, object, what, impact, fix, affects string) {
	*l = append(*l, NewFinding(severity, reason, object, what, impact, fix, affects))
}

// Absorb adds a finding that follows from this one. The finding then has the higher severity of the two.
func (f *Finding) Absorb(effect *Finding) {
	f.Severity = severities[min(slices.Index(severities, f.Severity), slices.Index(severities, effect.Severity))]
	f.What += "; so " + effect.What
	f.Impact += "; " + effect.Impact
}

// Wrong reports whether any finding is wrong.
func (l Findings) Wrong() bool { return l.Count(Wrong) > 0 }

// Count returns the number of findings with a severity.
func (l Findings) Count(s Severity) (n int) {
	for i := range l {
		if l[i].Severity == s {
			n++
		}
	}
	return n
}

// Sort sorts findings by severity. Findings with the same severity keep their order.
func (l Findings) Sort() {
	slices.SortStableFunc(l, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
}

// printFindings writes findings. It writes notes only if the printer is wide, and the text none if it writes no
// finding.
func printFindings(p *Printer, list Findings, none string) {
	shown, notes := 0, 0
	for i := range list {
		f := &list[i]
		if f.Severity == Note && !p.Wide {
			notes++
			continue
		}
		shown++
		style := map[Severity]Style{Wrong: Bad, Warning: Warn, Note: Dim}[f.Severity]
		p.Printf("%s %s\n", p.Paint(style, strings.ToUpper(string(f.Severity))), f.What)
		for _, line := range [][2]string{{"reason", string(f.Reason) + ", " + f.Object}, {"impact", f.Impact}, {"fix", f.Fix}, {"affects", f.Affects}} {
			p.Printf("    %-8s %s\n", line[0]+":", line[1])
		}
	}
	if shown == 0 {
		p.Printf("%s\n", p.Paint(Good, none))
	}
	if notes > 0 {
		p.Printf("%s\n", p.Paint(Dim, Count(notes, "note")+" with -o wide."))
	}
}
