package proxy

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// absorb plans new changes for at most the time of one batch, and returns the planned Services.
func (p *Proxy) absorb(ctx context.Context, dirty track.Dirty) []types.NamespacedName {
	if dirty.Node && p.absorbNode(ctx) && p.Planner.Services() > 0 { // at the start all Services are dirty already
		dirty.Services = p.withAll(dirty.Services)
	}
	if dirty.ServiceCIDRs {
		p.absorbServiceCIDRs()
	}
	if dirty.Node || dirty.ServiceCIDRs {
		p.publish()
	}
	p.noteTriggers(dirty.Triggers)
	if !p.started && p.Planner.Services() == 0 && !p.Planner.Recalling() {
		if err := p.Kernel.Recall(p.Planner, nil); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the kernel's tables; session affinity of some clients may be lost")
		}
	}
	return p.planFresh(sortedNames(dirty.Services))
}

func sortedNames(set map[types.NamespacedName]struct{}) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(set))
	for n := range set {
		names = append(names, n)
	}
	slices.SortFunc(names, model.CompareNames)
	return names
}

// absorbNode reads this Node. It reports whether a field has changed that the plan of Services depends on.
func (p *Proxy) absorbNode(ctx context.Context) (changed bool) {
	object := p.Source.Node()
	p.Health.Node(object)
	node := model.NodeOf(p.NodeName, object)
	if object == nil && p.node.Name != "" {
		node = p.node // a deleted Node registers again; until then, its last addresses and zone remain valid
	} else if node.IPs == ([2]netip.Addr{}) {
		node.IPs = p.node.IPs // a Node gets its addresses some time after it registers
	}
	node = node.WithIP(p.NodeIP)
	if node.IPs != p.node.IPs {
		message := "NodeIPs changed for the node" // both messages are kube-proxy's
		if p.node.IPs == ([2]netip.Addr{}) {
			message = "Successfully retrieved NodeIPs"
		}
		klog.FromContext(ctx).Info(message, "NodeIPs", node.IPs)
	}
	p.absorbNodePorts(ctx, node)
	if p.NodeCIDR && object != nil {
		p.absorbPodCIDRs(ctx, object)
	}
	changed = node != p.node
	p.node = node
	return changed
}

// withAll adds the names of all Services.
func (p *Proxy) withAll(dirty map[types.NamespacedName]struct{}) map[types.NamespacedName]struct{} {
	if dirty == nil {
		dirty = map[types.NamespacedName]struct{}{}
	}
	for _, n := range p.Source.Services() {
		dirty[n] = struct{}{}
	}
	return dirty
}

func (p *Proxy) absorbNodePorts(ctx context.Context, node model.Node) {
	for _, f := range p.Families {
		addrs, err := p.NodePorts.Addresses(f, node)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to get node ip address matching nodeport cidrs, services with nodeport may not work as intended",
				"ipFamily", f)
			p.addressesAt = p.Now().Add(addressesRetry)
			continue
		}
		p.Planner.SetNodeAddresses(f, addrs)
		p.nodeAddrs[f] = addrs
		p.setNodeAddresses(f, addrs)
		if p.NodePorts.everywhere(f, node) {
			addrs = []netip.Addr{inet.Unspecified[f]}
		}
		p.checkAddrs[f], p.checksChanged = addrs, true
	}
}

// absorbPodCIDRs plans with the prefixes of this node's pods. A Node without prefixes, such as one that has just registered
// again, leaves the previous ones in force.
func (p *Proxy) absorbPodCIDRs(ctx context.Context, object *corev1.Node) {
	cidrs, problems := model.PodCIDRs(object)
	p.reportNew(types.NamespacedName{Name: p.NodeName}, problems)
	if cidrs == p.podCIDRs || cidrs == ([2]netip.Prefix{}) {
		return
	}
	klog.FromContext(ctx).Info("Pods of this node are recognised by their addresses", "podCIDRs", object.Spec.PodCIDRs)
	p.podCIDRs = cidrs
	for _, f := range p.Families {
		p.Planner.SetLocalPods(f, plan.LocalPods{Prefix: cidrs[f]})
	}
}

func (p *Proxy) absorbServiceCIDRs() {
	cidrs, problems := model.ServiceCIDRs(p.Source.ServiceCIDRs())
	p.reportNew(types.NamespacedName{}, problems)
	p.serviceCIDRs = cidrs
	for _, f := range p.Families {
		p.Planner.SetServiceCIDRs(f, cidrs[f])
	}
}

// absorbService plans a Service; nil removes it from the plan.
func (p *Proxy) absorbService(name types.NamespacedName, s *model.Service) {
	var problems []model.Problem
	if s != nil {
		problems = s.Problems
	}
	p.absorbCheck(name, s)
	p.setNodePorts(name, s)
	if p.observed() {
		p.observe(name, s)
	}
	p.Planner.Set(name, s)
	problems = slices.Clip(problems) // the list belongs to the Service, so append must copy it
	for _, e := range p.Planner.Excess(name) {
		problems = append(problems, model.Problem{Kind: "Service", Name: name, Field: e.Field, Reason: e.Reason})
	}
	p.reportNew(name, problems)
}

// absorbCheck updates the Service's health check for load balancers.
func (p *Proxy) absorbCheck(name types.NamespacedName, s *model.Service) {
	old, had := p.checks[name]
	if s == nil || s.HealthCheckNodePort == 0 {
		delete(p.checks, name)
		p.checksChanged = p.checksChanged || had
		return
	}
	now := health.Check{Port: s.HealthCheckNodePort, Local: s.LocalReady}
	for _, f := range p.Families {
		now.Served[f] = s.Serves(f)
	}
	if !had || now != old {
		p.checks[name], p.checksChanged = now, true
	}
}

// syncChecks applies changed health checks. It retries ports that could not be opened.
func (p *Proxy) syncChecks() {
	if p.checksChanged {
		broken := p.Checks.Sync(p.checks, slices.Concat(p.checkAddrs[:]...))
		p.Metrics.HealthCheckPortsFailed(broken)
		p.checksChanged = broken > 0
	}
}
