package console

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

func (c *Console) status(ctx context.Context) *view.Status {
	now := time.Now()
	s := &view.Status{
		Node: c.NodeName, Version: c.Version, Kernel: kernelRelease(), Time: now, Started: c.Started, Mode: string(c.Config.Mode),
		LocalMode: string(c.Config.DetectLocalMode), Findings: []view.Finding{},
	}
	if s.API = (view.API{Source: "manifests in " + c.Manifests, Answers: true}); c.API != nil {
		s.API = c.API.State(ctx)
	}
	s.Features = kernelFeatures(s.Kernel)
	for _, f := range c.Families {
		s.Families = append(s.Families, f.String())
	}
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
	local := c.countObjects(s)
	c.askStatus(ctx, s)
	c.judge(s)
	s.Findings = append(s.Findings, doctor.Look(ctx, doctor.Config{
		Others: c.causes(s, local), Sysctls: "/proc/sys", Families: c.Families, Drops: doctor.Drops, Rival: c.Rival, NodePorts: c.NodePorts,
		Leftovers: func() (takeover.Leftovers, error) { return takeover.Look(c.ExcludedFromIPVS()) },
	})...)
	return s
}

// unserved reports the host's IP families that are not served, because the kernel lacks features.
func (c *Console) unserved() []view.Finding {
	if family, appeared := c.Appeared(); appeared {
		return []view.Finding{{
			Severity: view.Wrong, What: fmt.Sprintf("this host got %s after the program started", family),
			Impact: fmt.Sprintf("no %s Service is served", family), Fix: "wait 30 seconds: the program exits, and serves the family after the kubelet has restarted it",
		}}
	}
	families := host.Families()
	if len(families) <= len(c.Families) {
		return nil
	}
	lacks, err := c.Lacks(families)
	if err != nil || len(lacks) == 0 {
		return nil
	}
	what, fix := probe.Advice(lacks)
	return []view.Finding{{Severity: view.Wrong, What: what, Impact: "only Services of " + fmt.Sprint(c.Families) + " are served", Fix: fix}}
}

// countObjects counts the API's objects, and returns the addresses of endpoints on this node: it reads each object once.
func (c *Console) countObjects(s *view.Status) (local []netip.Addr) {
	facts := c.Loop.Facts()
	for _, name := range c.Source.Services() {
		s.Counts.Services++
		slices := c.Source.Slices(name)
		for _, slice := range slices {
			s.Counts.Endpoints += len(slice.Endpoints)
		}
		local = append(local, model.LocalAddresses(slices, c.NodeName)...)
		if built := model.Build(c.Source.Service(name), slices, facts.Node, c.ModelOptions()); built != nil && len(built.Problems)+len(c.Broken(name)) > 0 {
			s.Counts.Problems++
		}
	}
	if p := c.Pending(); !p.Latest.IsZero() {
		s.API.LastEvent = &p.Latest
	}
	return local
}

// askStatus sets the fields that only the loop knows.
func (c *Console) askStatus(ctx context.Context, s *view.Status) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	var err error
	if s.Loop, err = c.Loop.Status(ctx); err != nil {
		s.Why = append(s.Why, fmt.Sprintf("the sync loop has not answered for %v: a long sync is running, or the loop hangs", askLoop))
		return
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
		s.Counts.Conflicts = len(claims)
	}
}

// judge sets whether the program and the Node are healthy, and the reasons if not.
func (c *Console) judge(s *view.Status) {
	a := c.Account()
	s.Healthy, s.Eligible = a.Healthy && len(s.Why) == 0, a.Eligible
	if !a.Owed.IsZero() && s.Loop != nil && (s.Loop.OldestChange == nil || a.Owed.Before(*s.Loop.OldestChange)) {
		s.Loop.OldestChange = &a.Owed
	}
	if !a.Healthy {
		s.Why = append(s.Why, fmt.Sprintf("changes have not been programmed for %v", time.Since(a.Owed).Round(time.Second)))
	}
	if s.Loop != nil && s.Loop.Waits != "" {
		s.Why = append(s.Why, "nothing is programmed yet: waiting "+s.Loop.Waits)
	}
	if s.Loop != nil && s.Loop.Other != "" {
		s.Why = append(s.Why, fmt.Sprintf("another instance (%s) serves this node; this instance waits until it exits", s.Loop.Other))
	}
	if s.Loop != nil && s.Loop.Failure != nil {
		s.Why = append(s.Why, "syncs fail: "+s.Loop.Failure.Error)
	}
	switch {
	case a.Eligible, s.Loop != nil && s.Loop.Waits != "": // or the Node was not read yet
	case c.Source.Node() == nil:
		s.Why = append(s.Why, fmt.Sprintf("there is no Node %q: check --hostname-override", c.NodeName))
	default:
		s.Why = append(s.Why, "the Node is being deleted: /healthz fails, so that load balancers send no new connections")
	}
	if !s.API.Answers {
		s.Why = append(s.Why, "the API server does not answer: the rules stay as they are, and changes do not arrive")
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelFeatures returns features of newer kernels that the program uses.
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
