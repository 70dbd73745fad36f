package console

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// objects are the facts about the API's objects that findings need.
type objects struct {
	// local are the addresses of endpoints on this node.
	local []netip.Addr
	// families are the IP families of Services. nodePorts is true if a Service has a node port.
	families  [2]bool
	nodePorts bool
	// rejected are the Services with parts that are not programmed, and annotated the Services with rejected
	// annotations. broken are the Services whose health check port is not served.
	rejected, annotated, broken affected
}

// affected has the first Services with a problem.
type affected struct {
	names []string
	more  int
	// first is the first problem.
	first string
}

func (a *affected) add(name, problem string) {
	if a.first == "" {
		a.first = problem
	}
	if len(a.names) == view.MostNamed {
		a.more++
		return
	}
	a.names = append(a.names, name)
}

func (a *affected) count() int { return len(a.names) + a.more }

// readObjects reads each object once. It counts the objects, and returns the facts that findings need.
func (c *Console) readObjects(s *view.Status) *objects {
	o := &objects{}
	facts := c.Loop.Facts()
	server := serverAt(s.API.Source)
	for _, name := range c.Source.Services() {
		of := c.Source.Get(name)
		built := model.Build(of, facts.Node, c.ModelOptions())
		if built == nil {
			continue // not served, and not in the output of services
		}
		s.Counts.Services++
		for _, slice := range of.Slices {
			s.Counts.Endpoints += slice.Len()
		}
		o.local = append(o.local, model.Addresses(of.Slices, c.NodeName)...)
		for _, f := range inet.Families {
			o.families[f] = o.families[f] || built.Serves(f)
		}
		o.nodePorts = o.nodePorts || hasNodePort(built)
		if takes(built, server) {
			s.API.TakenBy = name.String()
		}
		broken := c.Broken(name)
		if len(built.Problems)+len(broken) > 0 {
			s.Counts.Problems++
		}
		o.addProblems(name.String(), built.Problems)
		if len(broken) > 0 {
			o.broken.add(name.String(), broken[0])
		}
	}
	if p := c.Pending(); !p.Latest.IsZero() && s.API.FromSnapshot == nil {
		s.API.LastEvent = &p.Latest
	}
	return o
}

// addProblems adds the first problem with an annotation, and the first other problem of a Service.
func (o *objects) addProblems(name string, list []model.Problem) {
	for _, annotated := range []bool{false, true} {
		if i := slices.IndexFunc(list, func(p model.Problem) bool { return p.OfAnnotation() == annotated }); i >= 0 {
			to := &o.rejected
			if annotated {
				to = &o.annotated
			}
			to.add(name, fmt.Sprintf("%s, %s: %s", doctor.Object(list[i]), list[i].Field, list[i].Reason))
		}
	}
}

// serverAt returns the address of an API server whose URL has an IP address; otherwise an invalid one.
func serverAt(address string) netip.AddrPort {
	u, err := url.Parse(address)
	if err != nil {
		return netip.AddrPort{}
	}
	at, _ := netip.ParseAddrPort(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	return at
}

// takes reports whether a Service has the address of the API server as a load-balancer IP or external IP.
func takes(s *model.Service, server netip.AddrPort) bool {
	return server.IsValid() && slices.ContainsFunc(s.Ports, func(p *model.ServicePort) bool {
		return slices.ContainsFunc(p.Frontends, func(f model.Frontend) bool {
			return f.Protocol == inet.TCP && f.Addr == server.Addr() && f.Port == server.Port() && !f.AtClusterIP()
		})
	})
}

func hasNodePort(s *model.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p *model.ServicePort) bool {
		return slices.ContainsFunc(p.Frontends, func(f model.Frontend) bool { return !f.Addr.IsValid() })
	})
}

// usedFamilies returns the IP families that the Node or a Service uses: by an address of the Node, by a prefix of pods
// or Services, or by a cluster IP. Without any, it returns IPv4.
func (c *Console) usedFamilies(o *objects) (list []inet.Family) {
	used := o.families
	use := func(addr netip.Addr) {
		if addr.IsValid() {
			used[inet.FamilyOf(addr)] = true
		}
	}
	for f, cidrs := range c.Loop.Facts().ServiceCIDRs {
		used[f] = used[f] || len(cidrs) > 0
	}
	for _, p := range c.podPrefixes() {
		use(p.Addr())
	}
	if node := c.Source.Node(); node != nil {
		for _, addr := range model.InternalIPs(node) {
			use(addr)
		}
		prefixes, _ := model.PodCIDRs(node)
		for _, p := range prefixes {
			use(p.Addr())
		}
	}
	for _, f := range inet.Families {
		if used[f] {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		return []inet.Family{inet.IPv4}
	}
	return list
}

// causes returns the findings about the daemon itself: its configuration, its identity, its permissions, and other
// programs that write its tables. used are the families that this node or a Service uses.
func (c *Console) causes(ctx context.Context, s *view.Status, o *objects, used []inet.Family) view.Findings {
	pods := podsAmong(o.local, c.Loop.Facts().ServiceCIDRs)
	return slices.Concat(
		c.unread(s, func() (fix, affects string) { return c.API.permit(ctx) }), c.snapshots(&s.API), c.unbound(s),
		c.configuration(), c.unserved(used), c.identity(s, o, used), c.rivals(s), c.unrecognised(used, pods),
		c.behindOthers(pods),
		c.bridged(pods),
	)
}

// onlyProgram lists everything that a restart of this program affects.
const onlyProgram = "only the program on this node: the rules and all connections stay"

// unserved reports IP families of the host that are not served, because the kernel lacks features. For an unused
// family, the finding is a note.
func (c *Console) unserved(used []inet.Family) view.Findings {
	severity := func(f inet.Family) view.Severity {
		if slices.Contains(used, f) {
			return view.Wrong
		}
		return view.Note
	}
	if family, appeared := c.Appeared(); appeared {
		return view.Findings{view.NewFinding(severity(family), view.FamilyAppeared, c.node(),
			fmt.Sprintf("this host got %s after the program started", family),
			fmt.Sprintf("no %s Service is served", family),
			"wait 30 seconds: the program exits, and serves the family after the kubelet has restarted it",
			onlyProgram)}
	}
	families := host.Families()
	if list := c.withoutFamily(used, families); len(list) > 0 {
		return list
	}
	if len(families) <= len(c.Families) {
		return nil
	}
	lacks, err := c.Lacks(families)
	required := probe.Required(lacks)
	if err != nil || len(required) == 0 {
		return nil
	}
	what, fix := probe.Advice(required)
	missing := slices.DeleteFunc(slices.Clone(families), func(f inet.Family) bool { return slices.Contains(c.Families, f) })
	return view.Findings{view.NewFinding(severity(missing[0]), view.FamilyNotServed, c.node(),
		what,
		"only Services of "+fmt.Sprint(c.Families)+" are served",
		fix,
		"the kernel of this node. Then delete the pod of this program on this node: the program checks the features "+
			"of the kernel only at its start")}
}

// withoutFamily reports IP families that the Node or a Service uses, and this host lacks. It is a note if the Node has
// no address of the family: then the host may lack it on purpose.
func (c *Console) withoutFamily(used, families []inet.Family) (list view.Findings) {
	var internal []netip.Addr
	if node := c.Source.Node(); node != nil {
		internal = model.InternalIPs(node)
	}
	for _, f := range used {
		if slices.Contains(families, f) {
			continue
		}
		severity := view.Note
		if slices.ContainsFunc(internal, func(a netip.Addr) bool { return inet.FamilyOf(a) == f }) {
			severity = view.Wrong
		}
		list.Add(severity, view.FamilyNotServed, c.node(),
			fmt.Sprintf("this host has no %s: it is disabled (net.ipv6.conf.all.disable_ipv6 = 1), or the kernel "+
				"lacks it", f),
			fmt.Sprintf("no %s Service can be reached on this node", f),
			fmt.Sprintf("on node %s: sysctl -w net.ipv6.conf.all.disable_ipv6=0, and add the addresses of the node "+
				"again. Without %s, remove its address from the Node (--node-ip of the kubelet)", c.NodeName, f),
			"all programs of this node that use the family. The program serves it after its next start")
	}
	return list
}

// configuration reports a configuration file that is not in force. It also reports settings without effect that need
// attention, such as gates and fields of another version of kube-proxy.
func (c *Console) configuration() (list view.Findings) {
	changed, err := c.Unread()
	object := "file " + c.File
	switch {
	case err != nil:
		list.Add(view.Wrong, view.ConfigurationUnread, object,
			fmt.Sprintf("the configuration file %s has changed, and cannot be used: %v", c.File, err),
			"the program runs with the configuration of its start. It cannot start again with this file, for example "+
				"after a reboot",
			"correct the file, or restore its previous content. If it belongs to a ConfigMap, correct the ConfigMap",
			"all nodes that use the same ConfigMap")
	case changed:
		list.Add(view.Warning, view.ConfigurationNotUsed, object,
			fmt.Sprintf("the configuration file %s has changed, and is not in force yet", c.File),
			"the program runs with the configuration of its start",
			fmt.Sprintf("delete the pod of this program on node %s, or restart its DaemonSet by a roll-out. With "+
				"--config-reload=exit, wait for the restart", c.NodeName),
			"only the program on this node, which then uses the new configuration. Connections stay")
	}
	return append(list, unmet(c.Notes, object)...)
}

func unmet(notes []config.Note, object string) (list view.Findings) {
	for _, n := range notes {
		if n.Finding {
			list.Add(view.Warning, view.ConfigurationIgnored, object,
				"configuration, "+n.Subject+": "+n.Text,
				"all other settings of the configuration are in force",
				"remove it from the configuration, or update kube-nftproxy to a version that has it",
				"nothing now: the setting has no effect")
		}
	}
	return list
}

// unbound reports HTTP servers that cannot listen.
func (c *Console) unbound(s *view.Status) (list view.Findings) {
	for _, p := range s.Ports {
		if p.Error == "" {
			continue
		}
		impact := "Prometheus gets no metrics of this node"
		if p.Name == "healthz" {
			impact = "probes and load balancers get no answer from this program: the kubelet may restart it, and " +
				"load balancers may avoid this node"
		}
		host, port, _ := net.SplitHostPort(p.Address) // the address has been validated
		fix := fmt.Sprintf("on node %s: ss -ltnp sport = :%s shows the process that has the port. Stop it, or move it "+
			"to another port", c.NodeName, port)
		affects := "only this process. The program tries again every 5 seconds"
		if p.Error == unix.EADDRNOTAVAIL.Error() {
			fix = fmt.Sprintf("on node %s: add the address %s to an interface, or set another %sBindAddress in the "+
				"configuration", c.NodeName, host, p.Name)
			affects = "only the clients of this port. The program tries again every 5 seconds"
		}
		list.Add(view.Wrong, view.PortNotBound, c.node(),
			fmt.Sprintf("the program cannot listen at %s for %s: %s", p.Address, p.Name, p.Error),
			impact,
			fix,
			affects)
	}
	return list
}

// lately is longer than the time between two attempts to list or watch a resource.
const lately = 30 * time.Second

// unread reports resources that the program cannot read from the API server. permit returns the fix for missing
// permissions.
func (c *Console) unread(s *view.Status, permit func() (fix, affects string)) (list view.Findings) {
	waits := s.Loop != nil && s.Loop.Waits != ""
	impact := "the rules stay as they are and keep serving. The program sees no changes"
	if waits {
		impact = c.impactOfWaiting()
	}
	add := func(severity view.Severity, reason view.Reason, what, fix, affects string) {
		list.Add(severity, reason, "API server "+s.API.Source,
			what, impact, fix, affects)
	}
	now := func(f view.WatchFailure) bool { return !f.Over }
	const server = "none on this node: check the API server, its etcd, and the load balancer in front of it"
	switch {
	case s.API.TakenBy != "" && (!s.API.Answers || s.API.Remedy != ""):
		add(view.Wrong, view.APIServerUnreachable,
			fmt.Sprintf("Service %s has the address of the API server, so this node sends the requests of this program to "+
				"the endpoints of this Service: %s", s.API.TakenBy, s.API.Error),
			fmt.Sprintf("from a machine that reaches the API server, remove the address from spec.externalIPs and the status "+
				"of Service %s. The program on node %s cannot read this change: stop it, run kube-nftproxy --cleanup there, "+
				"and start it", s.API.TakenBy, c.NodeName),
			"the clients of this address. Until the start, this node serves no Service")
		return list
	case s.API.Remedy != "":
		add(view.Wrong, view.APIServerUnreachable, "requests to the API server fail: "+s.API.Error, s.API.Remedy, users)
		return list
	case !s.API.Answers:
		fix, affects := reach(&s.API)
		what := "the API server does not answer: "
		if s.API.Proxy != "" {
			what = "the API server does not answer by the proxy " + s.API.Proxy + ": "
		}
		add(view.Wrong, view.APIServerUnreachable, what+s.API.Error, fix, affects)
		return list
	case s.API.Error != "" && !waits && !slices.ContainsFunc(s.API.Failures, now):
		impact = "none while the open watches last: the program receives changes by them"
		add(view.Warning, view.APIServerFailing, "the API server reports an error: "+s.API.Error, server, "nothing")
		return list
	case s.API.Error != "":
		add(view.Wrong, view.APIServerFailing, "the API server answers with an error: "+s.API.Error, server, "nothing")
		return list
	}
	fault := tokenFault(s.API.TokenFile, s.Time)
	if rejected := func(f view.WatchFailure) bool { return f.Unauthorized && !f.Over }; fault != "" &&
		!slices.ContainsFunc(s.API.Failures, rejected) {
		list.Add(view.Warning, view.TokenUnusable, "API server "+s.API.Source,
			fault,
			"none while the API server accepts the token that the program has read before. Then the program sees no "+
				"changes, and does not start",
			tokenFix(s.API.TokenFile),
			users)
	}
	for _, same := range alikeFailures(s.API.Failures) {
		f := same[0]
		if !waits && s.Time.Sub(f.Last) > lately {
			continue
		}
		var resources []string
		for _, f := range same {
			resources = append(resources, f.Resource)
		}
		what := fmt.Sprintf("cannot read %s: %s", strings.Join(resources, ", "), f.Error)
		switch {
		case f.Over:
			list.Add(view.Note, view.WatchFailing, "API server "+s.API.Source,
				fmt.Sprintf("reading %s failed %v ago, and works again: %s", strings.Join(resources, ", "),
					s.Time.Sub(f.Last).Round(time.Second), f.Error),
				"none now: the program receives changes again",
				"none, unless it fails again: then check the log of the API server",
				"nothing")
		case f.Forbidden && f.Resource == podsResource:
			list.Add(view.Wrong, view.APIForbidden, "API server "+s.API.Source,
				what,
				"the program serves no host port whose pod it has not read. Services are not affected",
				"apply deploy/host-ports, or set hostPorts: true in the values of the chart: both permit the program "+
					"to list and watch pods. Or remove the flag --host-ports",
				"only the program, which may then read all pods")
		case f.Forbidden:
			fix, affects := permit()
			add(view.Wrong, view.APIForbidden, what, fix, affects)
		case f.Unauthorized && s.API.TokenFile != "":
			if fault != "" {
				what += "; " + fault
			}
			add(view.Wrong, view.APIUnauthorized, what, "the API server rejects the token: "+tokenFix(s.API.TokenFile), users)
		case f.Unauthorized:
			add(view.Wrong, view.APIUnauthorized, what, "the API server rejects the token or the client certificate: "+
				"put a valid one into the kubeconfig", users)
		case waits:
			add(view.Wrong, view.WatchFailing, what, "check the log of this program and the log of the API "+
				"server", users)
		default:
			add(view.Warning, view.WatchFailing, what, "wait: the program tries again every 5 to 10 seconds. If the "+
				"finding stays, check the log of the API server", users)
		}
	}
	if waits && !list.Wrong() && s.Loop.Other == "" {
		add(view.Wrong, view.WaitingForObjects, "this process has programmed nothing yet: waiting "+s.Loop.Waits, "wait: the first list of a large cluster takes seconds", "nothing")
	}
	return list
}

// podsResource is the resource with the host ports. The ClusterRole system:node-proxier does not permit it.
const podsResource = "pods"

// snapshots reports that the objects of a snapshot are served, and that a snapshot cannot be read or written.
func (c *Console) snapshots(api *view.API) (list view.Findings) {
	if api.SnapshotError != "" {
		list.Add(view.Warning, view.SnapshotFailed, c.node(),
			api.SnapshotError,
			"none while the API server answers. If this node boots while it does not, no Services are served, or those "+
				"of an older snapshot",
			fmt.Sprintf("on node %s: if the file cannot be written, give the program a writable folder with free space "+
				"(df, ls -la). It writes the next snapshot within 5 minutes, or as soon as it has read all objects, and "+
				"replaces a damaged file", c.NodeName),
			"only the snapshot")
	}
	if api.FromSnapshot == nil {
		return list
	}
	list.Add(view.Warning, view.ServingSnapshot, "API server "+api.Source,
		"the Services and endpoints are those of a snapshot of "+api.FromSnapshot.UTC().Format(time.RFC3339)+
			": the API server has not confirmed them since the start of this process",
		"connections fail if they are sent to an endpoint that was removed since then. "+
			"Pods of this node have other addresses after a reboot",
		"none on this node: the program gets the changes since the snapshot as soon as the API server answers",
		"nothing")
	return list
}

// users are the programs that a change of a kubeconfig affects.
const users = "only the programs that use the same kubeconfig"

// reach returns the fix for an API server that does not answer. If it has answered before, also to a previous process
// that has written the snapshot, the kubeconfig is right.
func reach(api *view.API) (fix, affects string) {
	switch {
	case api.Proxy != "":
		return "if the control plane is down, none on this node. Otherwise, check the proxy " + api.Proxy +
			" (HTTPS_PROXY or HTTP_PROXY of this program, or proxy-url in the kubeconfig). To connect without it, add " +
			"the API server to NO_PROXY", "only this program"
	case api.Answered, api.FromSnapshot != nil:
		return "none on this node, if the control plane is down: the program continues as soon as it answers. If " +
			"other nodes reach it, check the network of this node", "nothing"
	}
	return "if the control plane is down, none on this node. Otherwise, correct the address in the kubeconfig. It must be reachable without Services: do not " +
		"use a cluster IP such as 10.96.0.1", users
}

// impactOfWaiting returns the state of Services while the program waits for its first sync.
func (c *Console) impactOfWaiting() string {
	found, err := c.Earlier()
	switch {
	case err != nil:
		return "this process has programmed no Service yet. If a previous process has left rules, they keep serving, " +
			"without changes"
	case found:
		return "the rules of the previous process keep serving, without changes"
	}
	return "no Service is served on this node: there are no rules of a previous process"
}

// alikeFailures groups failures with the same fix.
func alikeFailures(list []view.WatchFailure) (groups [][]view.WatchFailure) {
	for _, f := range list {
		like := func(g []view.WatchFailure) bool {
			own := (f.Resource == podsResource) != (g[0].Resource == podsResource) // another permission
			return f.Over == g[0].Over &&
				(f.Forbidden && g[0].Forbidden && !own || f.Unauthorized && g[0].Unauthorized || f.Error == g[0].Error)
		}
		if i := slices.IndexFunc(groups, like); i >= 0 {
			groups[i] = append(groups[i], f)
		} else {
			groups = append(groups, []view.WatchFailure{f})
		}
	}
	return groups
}

// rivals reports another process that writes the same tables from another plan, for example with other flags, or
// another program that keeps deleting or changing the tables. The program reverts each of these changes.
func (c *Console) rivals(s *view.Status) view.Findings {
	const (
		window = 5 * time.Minute
		often  = 3 // a new instance and the old one may both write the tables until the old one exits
	)
	if s.Loop == nil {
		return nil
	}
	proxies, all, proxy, last := 0, 0, "", view.Repair{}
	for _, r := range s.Loop.Repairs {
		if s.Time.Sub(r.Time) >= window || r.Reason == string(beside.FailedSync) {
			continue
		}
		if all, last = all+1, r; r.Program == "kube-nftproxy" || r.Program == "kube-proxy" {
			proxies, proxy = proxies+1, r.By
		}
	}
	switch {
	case proxies >= often:
		return view.Findings{view.NewFinding(view.Wrong, view.TablesFoughtOver, c.node(),
			fmt.Sprintf("another %s writes the same tables with other contents: %d of the last repairs reverted its "+
				"changes", proxy, proxies),
			"all Services: the rules alternate between the two programs",
			fmt.Sprintf("stop one of them on node %s. To list them: ps -eo pid,lstart,args | grep "+
				"kube-nftproxy", c.NodeName),
			"only the stopped one: the other one serves all Services")}
	case all >= often:
		return view.Findings{view.NewFinding(view.Warning, view.TablesTouched, c.node(),
			fmt.Sprintf("another program keeps changing the tables of this program: at least %d repairs in the last "+
				"%d minutes, the last one because %s%s", all, window/time.Minute, last.Why, changedBy(last.By)),
			"all Services: new connections between a change and its repair may fail",
			fmt.Sprintf("find the program on node %s, such as a timer that reloads a firewall, and let it flush only "+
				"its own tables, instead of the ruleset", c.NodeName),
			"only this program")}
	}
	return nil
}

func changedBy(process string) string {
	if process == "" {
		return ""
	}
	return ". The ruleset was last changed by " + process
}

// podsAmong returns the addresses of pods: the addresses of local endpoints, without the node's own and without those
// of Services, sorted, without duplicates.
func podsAmong(local []netip.Addr, services [2][]netip.Prefix) []netip.Addr {
	own, err := host.Addresses()
	if err != nil {
		return nil
	}
	slices.SortFunc(local, netip.Addr.Compare)
	local = slices.Compact(local)
	return slices.DeleteFunc(local, func(addr netip.Addr) bool {
		return addr.IsLoopback() || slices.Contains(own, addr) || within(services[inet.FamilyOf(addr)], addr)
	})
}

// unrecognised reports that the configuration lacks a prefix by which the rules recognise local pods, in a family that
// is used, and local pods with other addresses.
func (c *Console) unrecognised(used []inet.Family, pods []netip.Addr) (list view.Findings) {
	mode := c.Config.DetectLocalMode
	if mode != config.ClusterCIDR && mode != config.NodeCIDR {
		return nil
	}
	prefixes := c.podPrefixes()
	missing := slices.DeleteFunc(slices.Clone(used), func(f inet.Family) bool { return prefixes[f].IsValid() })
	strange := slices.DeleteFunc(slices.Clone(pods), func(addr netip.Addr) bool {
		p := prefixes[inet.FamilyOf(addr)]
		return !p.IsValid() || p.Contains(addr)
	})
	lacks, setting, fix := "clusterCIDR (--cluster-cidr) has", "--cluster-cidr", c.clusterCIDRFix()
	if mode == config.NodeCIDR {
		lacks, setting = "the Node's podCIDRs have", "the Node's podCIDRs"
		fix = "set detectLocalMode: ClusterCIDR and clusterCIDR in the configuration, or let the controller manager " +
			"allocate podCIDRs"
	}
	add := func(reason view.Reason, what, impact, fix string) {
		list.Add(view.Warning, reason, "configuration of node "+c.NodeName,
			what,
			impact,
			fix,
			"the source addresses of new connections, on all nodes that use the same configuration")
	}
	all, _ := config.Masquerading(c.Config)
	unknown := mode == config.NodeCIDR && c.Source.Node() == nil
	if len(missing) > 0 && !all && !unknown {
		add(view.ClusterCIDRMissing, fmt.Sprintf("%s no prefix of %s", lacks, strings.Join(view.Texts(missing), " and ")),
			"the rules do not masquerade clients outside of the pod network at cluster IPs. Such a client gets no reply from a cluster IP, unless the "+
				"reply returns by this node", fix)
	}
	if len(strange) > 0 {
		add(view.PodsOutsideClusterCIDR, fmt.Sprintf("pods on this node have addresses outside of %s (%s): %s", setting,
			joinPrefixes(prefixes), view.Names(view.Texts(strange), 0)),
			"source addresses: the rules masquerade connections from these pods to Services as external traffic, so "+
				"that endpoints see the node's address",
			c.clusterCIDRFix())
	}
	return list
}

// behindOthers reports local pods behind interfaces by which the rules do not recognise them.
func (c *Console) behindOthers(pods []netip.Addr) (list view.Findings) {
	const most = 1_000 // more than the pods of a node: tenants write the endpoints
	var strange []string
	for _, pod := range pods[:min(len(pods), most)] {
		of := c.LocalPods[inet.FamilyOf(pod)]
		if of.Interface == "" {
			continue // no route is needed
		}
		if device, _, err := (host.Routes{}).Out(pod); err == nil && isOther(of, device) {
			strange = append(strange, fmt.Sprintf("%s (%s)", pod, device))
		}
	}
	if all, _ := config.Masquerading(c.Config); all || len(strange) == 0 {
		return nil
	}
	setting, value := "detectLocal.bridgeInterface (--pod-bridge-interface)", c.Config.DetectLocal.BridgeInterface
	if c.Config.DetectLocalMode == config.InterfaceNamePrefix {
		setting = "detectLocal.interfaceNamePrefix (--pod-interface-name-prefix)"
		value = c.Config.DetectLocal.InterfaceNamePrefix
	}
	list.Add(view.Warning, view.PodsByOtherInterfaces, "configuration of node "+c.NodeName,
		fmt.Sprintf("pods on this node are behind other interfaces than %s, %q: %s", setting, value, view.Names(strange, 0)),
		"source addresses: the rules masquerade connections from these pods to Services as external traffic, so that "+
			"endpoints see the node's address. With policy Local, these pods get no connection to external addresses of a "+
			"Service without local endpoints",
		fmt.Sprintf("set %s to the interfaces of pods, or set another detectLocalMode", setting),
		"the source addresses of new connections, on all nodes that use the same configuration")
	return list
}

// isOther reports whether the rules recognise local pods by their interface, and not by this one.
func isOther(of plan.LocalPods, device string) bool {
	switch {
	case of.Interface == "":
		return false
	case of.InterfacePrefix:
		return !strings.HasPrefix(device, of.Interface)
	}
	return device != of.Interface
}

// clusterCIDRFix returns the fix for a wrong clusterCIDR, with the prefixes of this Node's pods.
func (c *Console) clusterCIDRFix() string {
	fix := "set clusterCIDR in the configuration to all prefixes of pods"
	if node := c.Source.Node(); node != nil && len(node.Spec.PodCIDRs) > 0 {
		if prefixes, _ := model.PodCIDRs(node); prefixes != ([2]netip.Prefix{}) {
			fix += ", which include " + joinPrefixes(prefixes) + " (spec.podCIDRs of this Node)"
		}
	}
	return fix + ", or set another detectLocalMode"
}

// bridged reports pods on one bridge whose packets to each other bypass the rules. If such a pod connects to a Service,
// and the endpoint is another pod on the bridge, the reply is not translated back and has an unexpected source.
// Masqueraded connections work, because their replies pass this node.
func (c *Console) bridged(pods []netip.Addr) (list view.Findings) {
	if all, _ := config.Masquerading(c.Config); all {
		return nil
	}
	for _, f := range inet.Families {
		bridges, sysctl, err := host.Bypassing(f)
		if err != nil {
			return nil
		}
		for _, b := range bridges {
			behind := func(addr netip.Addr) bool { return inet.FamilyOf(addr) == f && b.Holds(addr) }
			if !slices.ContainsFunc(pods, behind) {
				continue
			}
			list.Add(view.Wrong, view.BridgeBypassesRules, c.node(),
				fmt.Sprintf("replies between pods on bridge %s bypass the rules of this node (%s is not 1)", b.Name,
					sysctl),
				fmt.Sprintf("%s connections of a pod to a Service whose endpoint is on the same bridge fail: the "+
					"reply is not translated back", f),
				fmt.Sprintf("on node %s: modprobe br_netfilter; sysctl -w %s=1", c.NodeName, sysctl),
				"the rules of all firewalls on this node apply to packets on all its bridges, until the next boot")
		}
	}
	return list
}

// podPrefixes returns the configured prefixes of pods.
func (c *Console) podPrefixes() (list [2]netip.Prefix) {
	if pods := c.Loop.Facts().PodCIDRs; pods != list {
		return pods
	}
	for f := range list {
		list[f] = c.LocalPods[f].Prefix
	}
	return list
}

func joinPrefixes(list [2]netip.Prefix) string {
	var parts []string
	for _, p := range list {
		if p.IsValid() {
			parts = append(parts, p.String())
		}
	}
	return strings.Join(parts, ",")
}
