package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/nodeport"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/instance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Site is a node on which the program is not installed yet.
type Site struct {
	// NodeName is the name of the Node. If it is empty, Preflight uses the name that a running kube-proxy has in its
	// configuration, or else Hostname.
	NodeName, Hostname string
	// ServiceCIDRs are the prefixes of cluster IPs; none if they are unknown. Mode is the mode of kube-proxy in the
	// configuration, or empty for the mode of a running kube-proxy.
	ServiceCIDRs []netip.Prefix
	Mode         string
	// Root is the root folder of the node, usually /.
	Root string
	// Lacks queries the kernel for features that IP families need.
	Lacks func([]inet.Family) ([]probe.Missing, error)
	// Table and First are those of [Config].
	Table string
	First int32
}

// The ports of the program, and of kube-proxy.
const (
	metricsPort = 10249
	healthPort  = 10256
)

// Preflight checks a node before an installation: everything that the program needs, and other programs that conflict
// with it. It changes nothing, but the kernel may load missing modules when Preflight queries it for a feature.
func Preflight(ctx context.Context, s Site) *view.Preflight {
	rival := takeover.FindRival(ctx, "", "")
	s.NodeName = cmp.Or(s.NodeName, rival.NodeName(ctx), s.Hostname)
	v := &view.Preflight{SchemaVersion: view.SchemaVersion, Node: s.NodeName, Findings: view.Findings{}}
	families := usedFamilies()
	c := Config{
		NodeName: s.NodeName, Sysctls: "/proc/sys", Families: families, Table: s.Table, First: s.First,
	}
	s.kernel(v, families)
	holder, err := instance.Find(instance.Name)
	s.proxies(v, rival)
	s.running(v, holder, err)
	s.ports(v, rival.Page != "" || holder != "")
	s.network(v, rival)
	s.firewalls(v)
	c.Services = s.services(v, rival.Mode)
	list := Look(ctx, c)
	problems := view.Count(len(list)-list.Count(view.Note), "problem")
	v.Add("node", problems+" of networks, forwarding, firewalls and connection tracking", list...)
	v.Conclude()
	return v
}

func (s *Site) node() string { return "Node " + s.NodeName }

// usedFamilies returns the IP families to check: IPv4, and IPv6 if an interface has a global IPv6 address.
func usedFamilies() (list []inet.Family) {
	own, _ := host.Addresses() // without addresses, the result is IPv4
	for _, f := range host.Families() {
		global := func(a netip.Addr) bool { return inet.FamilyOf(a) == f && a.IsGlobalUnicast() }
		if f == inet.IPv4 || slices.ContainsFunc(own, global) {
			list = append(list, f)
		}
	}
	return list
}

// services adds the known ServiceCIDRs, and returns them. The configuration for kube-nftproxy may have another mode
// than kube-proxy has now: if no kube-proxy runs, its default is nftables, as in the manifests of kube-nftproxy.
func (s *Site) services(v *view.Preflight, present string) ServiceNetworks {
	if len(s.ServiceCIDRs) > 0 {
		mode := cmp.Or(s.Mode, present, "nftables")
		text := fmt.Sprintf("%s, checked for mode %s", strings.Join(view.Texts(s.ServiceCIDRs), " and "), mode)
		v.Add("service CIDRs", text)
		return ServiceNetworks{CIDRs: s.ServiceCIDRs, RouteUnused: mode != "nftables"}
	}
	v.Add("service CIDRs", "unknown: set --service-cidrs to the output of kubectl get servicecidrs")
	return ServiceNetworks{}
}

// kernel checks the version and the features of the kernel. used are the IP families that the node uses: for all
// others, missing features are a note.
func (s *Site) kernel(v *view.Preflight, used []inet.Family) {
	release := host.Release()
	if err := host.CheckKernel(); err != nil {
		v.Add("kernel", release, view.NewFinding(view.Wrong, view.KernelTooOld, s.node(),
			err.Error(),
			"the program does not start",
			"install a newer kernel on this node",
			"this node, which has to reboot"))
	} else {
		v.Add("kernel", release)
	}
	families := host.Families()
	lacks, err := s.Lacks(families)
	for _, setting := range probe.Settings {
		if missing := probe.For(setting, lacks); len(missing) > 0 {
			what, fix := probe.Advice(missing)
			v.Add(setting.Name, what, view.NewFinding(view.Note, view.ModulesMissing, s.node(),
				what,
				setting.Without,
				fix,
				"the kernel of this node. Then delete the pod of the program on this node, if it runs: the program checks "+
					"the features of the kernel only at its start"))
		}
	}
	lacks = probe.Required(lacks)
	switch {
	case err != nil:
		v.Add("features", "unknown", view.NewFinding(view.Wrong, view.CheckFailed, s.node(),
			fmt.Sprintf("cannot query the kernel for features: %v", err),
			"unknown",
			"run this command with the capability NET_ADMIN, in the node's network namespace",
			"nothing"))
	case len(lacks) > 0:
		what, fix := probe.Advice(lacks)
		severity := view.Note
		if slices.ContainsFunc(lacks, func(m probe.Missing) bool { return slices.Contains(used, m.Family) }) {
			severity = view.Wrong
		}
		v.Add("features", what, view.NewFinding(severity, view.ModulesMissing, s.node(),
			what,
			"Services of these IP families are not served",
			fix,
			"the kernel of this node"))
	default:
		v.Add("features", "all for "+strings.Join(view.Texts(families), " and "))
	}
}

// proxies adds the kube-proxy that runs on the node, and its rules.
func (s *Site) proxies(v *view.Preflight, rival takeover.Rival) {
	left, err := takeover.Look(nil)
	there := counts(left)
	text := "no kube-proxy runs"
	switch {
	case rival.Page != "":
		text = fmt.Sprintf("kube-proxy, mode %s, answers at %s", cmp.Or(rival.Mode, "unknown"), rival.Page)
	case rival.Unknown != nil:
		text = "unknown: " + strings.ReplaceAll(rival.Unknown.Error(), "\n", "; ")
	}
	if there != "" {
		text += "; its rules: " + there
	}
	if err != nil {
		text += fmt.Sprintf("; not all of its rules can be read: %v", err)
	}
	v.Add("old proxy", text)
}

// running adds whether kube-nftproxy already runs. holder is its process, or "".
func (s *Site) running(v *view.Preflight, holder string, err error) {
	switch {
	case err != nil:
		v.Add("kube-nftproxy", fmt.Sprintf("unknown: %v", err))
	case holder != "":
		v.Add("kube-nftproxy", "runs: "+holder)
	default:
		v.Add("kube-nftproxy", "does not run")
	}
}

// ports checks whether the ports of the program are free, or in use by the running proxy.
func (s *Site) ports(v *view.Preflight, proxyRuns bool) {
	sockets, err := nodeport.Listening(nodeport.Range{First: metricsPort, Last: healthPort})
	if err != nil {
		v.Add("ports", fmt.Sprintf("unknown: %v", err))
		return
	}
	var used []string
	for _, socket := range sockets {
		if port := socket.Local.Port(); socket.Protocol == inet.TCP && (port == metricsPort || port == healthPort) {
			used = append(used, socket.Local.String())
		}
	}
	slices.Sort(used)
	used = slices.Compact(used)
	switch {
	case len(used) == 0:
		v.Add("ports", fmt.Sprintf("%d and %d are free", metricsPort, healthPort))
	case proxyRuns:
		v.Add("ports", strings.Join(used, " and ")+" are in use by the running proxy")
	default:
		v.Add("ports", "in use: "+strings.Join(used, ", "), view.NewFinding(view.Wrong, view.PortInUse, s.node(),
			"another process listens at "+strings.Join(used, " and "),
			"kube-nftproxy cannot answer probes, load balancers or Prometheus there",
			fmt.Sprintf("on node %s: ss -ltnp 'sport = :%d or sport = :%d' shows the process. Stop it, or move it to "+
				"another port", s.NodeName, metricsPort, healthPort),
			"only this process"))
	}
}

// firewalls names the firewalls of the node.
func (s *Site) firewalls(v *view.Preflight) {
	found, err := s.findFirewalls()
	if err != nil {
		v.Add("firewalls", fmt.Sprintf("unknown: %v", err))
		return
	}
	if len(found) == 0 {
		v.Add("firewalls", "neither firewalld nor ufw nor Docker")
		return
	}
	v.Add("firewalls", strings.Join(found, ", "), view.NewFinding(view.Note, view.FirewallFound, s.node(),
		strings.Join(found, " and ")+" has rules on this node",
		"if its chains drop packets to this node, load balancers get no answer at port 10256 and at health check node ports. A reload that flushes all "+
			"tables makes new connections to Services fail for up to a second",
		fmt.Sprintf("in the firewall's chain for packets to this node, accept TCP port %d and the health check node "+
			"ports of your Services", healthPort),
		"only these ports"))
}

func (s *Site) findFirewalls() (found []string, err error) {
	names := map[string]bool{}
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	chains, err := read.BaseChains(conn, inet.Families[:]...)
	if err != nil {
		return nil, err
	}
	for i := range chains {
		rules, err := read.Rules(conn, chains[i].Family, chains[i].Table)
		if err != nil {
			return nil, err
		}
		d, _ := dropOf(&chains[i], rules)
		names[d.Firewall] = true
	}
	if strings.Contains(s.read("etc/ufw/ufw.conf"), "ENABLED=yes") {
		names["ufw"] = true
	}
	if _, err := netlink.LinkByName("docker0"); err == nil {
		names["Docker"] = true
	}
	for _, n := range []string{"firewalld", "ufw", "Docker"} {
		if names[n] {
			found = append(found, n)
		}
	}
	return found, nil
}
