package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// status describes the program and its node. Each problem is a finding, and the health, the exit code and the text
// follow from the findings.
func (c *Console) status(ctx context.Context) *view.Status {
	now := time.Now()
	s := &view.Status{
		SchemaVersion: view.SchemaVersion, Node: c.NodeName, Version: c.Version, Kernel: host.Release(), Time: now, Started: c.Started,
		Mode: string(c.Config.Mode), LocalMode: string(c.Config.DetectLocalMode), ServiceProxyName: c.ServiceProxyName, ConfigFile: c.File, Ports: c.Ports(),
	}
	if s.API = (view.API{Source: "manifests in " + c.Manifests, Answers: true}); c.API != nil {
		s.API = c.API.State(ctx)
	}
	if c.Snapshot != nil {
		at, err := c.Snapshot()
		if !at.IsZero() {
			s.API.FromSnapshot = &at
		}
		if err != nil {
			s.API.SnapshotError = err.Error()
		}
	}
	s.Features, s.Families = kernelFeatures(s.Kernel), view.Texts(c.Families)
	if s.Mode == "" {
		s.Mode = "iptables (the default)"
	}
	for _, f := range c.LoopbackFamilies(c.Families) {
		if s.Loopback == nil {
			state := c.LoopbackState()
			s.Loopback = &view.Loopback{Listeners: state.Listeners, Connections: state.Connections, Failures: state.Failures}
		}
		s.Loopback.Addresses = append(s.Loopback.Addresses, inet.Localhost[f].String())
	}
	o := c.readObjects(s)
	conflicts := c.askStatus(ctx, s)
	used := c.usedFamilies(o)
	own := slices.Concat(c.judge(s), c.causes(ctx, s, o, used), c.rejected(o, conflicts))
	node := doctor.Config{
		NodeName: c.NodeName, Sysctls: "/proc/sys", Families: used, Services: c.serviceNetworks(), Rival: c.Rival,
		NodePorts: c.NodePorts, Monitors: doctor.Monitors,
	}
	if c.ServiceProxyName == "" { // with a name, other chains are first, and the rules of kube-proxy are not leftovers
		node.Table, node.First = plan.TableName, plan.FirstPriority
		node.Leftovers = func() (takeover.Leftovers, error) { return takeover.Look(c.ExcludedFromIPVS()) }
	}
	if older, newer, _ := c.Instances(); len(older)+len(newer) > 0 || s.Loop != nil && s.Loop.Other != "" {
		node.Monitors = nil // the other instance monitors nftables
	}
	s.Findings = absorb(append(own, doctor.Look(ctx, node)...))
	s.ByClock()
	s.Conclude()
	return s
}

// askStatus queries the loop, sets the fields that only the loop knows, and returns the conflicts of Services. If the
// loop does not answer, Loop is nil.
func (c *Console) askStatus(ctx context.Context, s *view.Status) (conflicts []plan.Conflict) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	var err error
	if s.Loop, err = c.loopStatus(ctx); err != nil {
		return nil
	}
	p := c.Pending()
	if s.Loop.Pending += p.Services; !p.Since.IsZero() {
		s.Loop.OldestChange = &p.Since
	}
	s.Counts.Elements = map[string]int{}
	if n, err := c.Loop.Elements(ctx); err == nil {
		for _, f := range c.Families {
			s.Counts.Elements[f.String()] = n[f]
		}
	}
	if list, err := c.Loop.Conflicts(ctx, c.Source.Services()); err == nil {
		claims := map[model.Key]bool{}
		for _, conflict := range list {
			claims[conflict.Key] = true
		}
		s.Counts.Conflicts, conflicts = len(claims), list
	}
	return conflicts
}

// loopStatus queries the loop. If the loop waits for the first list, and the list for its turn, it says so. Turns of
// small clusters are not worth a word: they last milliseconds.
func (c *Console) loopStatus(ctx context.Context) (*view.Loop, error) {
	l, err := c.Loop.Status(ctx)
	if err == nil && l.Waits != "" && c.Turn != nil {
		if longest := c.Turn(); longest >= time.Second {
			l.Waits = fmt.Sprintf("for its turn to list, up to %v", longest.Round(100*time.Millisecond))
		}
	}
	return l, err
}

// judge sets Live, Ready and Eligible, and returns the findings about the loop and about other instances.
func (c *Console) judge(s *view.Status) (list view.Findings) {
	a := c.Account()
	s.Live, s.Ready, s.Eligible = a.Healthy, a.Ready, a.Eligible
	const previous = "the rules of the last successful sync stay in force; changes of Services and endpoints are " +
		"delayed"
	node := c.node()
	restart := view.ReportAndRestart(c.NodeName)
	if s.Loop == nil {
		list.Add(view.Wrong, view.LoopBusy, node,
			fmt.Sprintf("the sync loop has not answered for %v: a long sync is running, or the loop "+
				"hangs", askLoop), previous,
			"repeat this command in a minute. If the finding stays, "+restart, onlyProgram)
		return list
	}
	if !a.Pending.IsZero() && (s.Loop.OldestChange == nil || a.Pending.Before(*s.Loop.OldestChange)) {
		s.Loop.OldestChange = &a.Pending
	}
	if f := s.Loop.Failure; f != nil {
		list.Add(view.Wrong, view.SyncFailing, node,
			fmt.Sprintf("syncs have failed %d times since %s: %s", f.Times, f.Since.UTC().Format(time.RFC3339), f.Error), previous, f.Fix, f.Affects)
	} else if !a.Healthy {
		list.Add(view.Wrong, view.ChangesWaiting, node,
			fmt.Sprintf("changes have not been programmed for %v", time.Since(a.Pending).Round(time.Second)), previous,
			"read the log of this program. If it has no new lines, "+restart, onlyProgram)
	}
	if s.Loop.Other != "" {
		list.Add(view.Warning, view.StandingBy, node,
			fmt.Sprintf("another instance (%s) serves this node; this instance waits until it exits", s.Loop.Other),
			"none, if one instance replaces the other. The newer instance serves with its own configuration",
			fmt.Sprintf("remove one of the two from node %s, by its name and process "+
				"ID", c.NodeName), "only the removed instance: the other one serves")
	}
	older, _, unreachable := c.Instances()
	if len(older) > 0 {
		list.Add(view.Warning, view.OlderInstance, node,
			"an older instance stands by on this node: "+strings.Join(older, "; "),
			"commits take longer, because the older instance listens for changes of the tables. If this instance "+
				"exits, the older one serves, with its own configuration and version",
			fmt.Sprintf("unless a replacement is in progress, remove the older instance from node %s, by its name "+
				"and process ID", c.NodeName), "only the older instance")
	}
	if unreachable != "" {
		list.Add(view.Warning, view.ServingAlone, node,
			"another process holds the socket by which instances agree: "+unreachable,
			"if the process is another kube-nftproxy, both write the tables", fmt.Sprintf("on node %s: ss -xlp | grep kube-nftproxy/instance shows the process. Stop it", c.NodeName),
			"only this process")
	}
	return list
}

// node returns this Node as the object of a finding.
func (c *Console) node() string { return "Node " + c.NodeName }

// kernelFeatures returns the features of newer kernels from which the program benefits, and whether this kernel has
// them.
func kernelFeatures(release string) []view.Feature {
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	since := func(m, n int) bool { return err == nil && (major > m || major == m && minor >= n) }
	return []view.Feature{
		{Name: "chains freed at once (6.2)", Has: since(6, 2)},
		{Name: "sets that grow (6.5)", Has: since(6, 5)},
		{Name: "numbers of elements reported (6.16)", Has: since(6, 16)},
	}
}
