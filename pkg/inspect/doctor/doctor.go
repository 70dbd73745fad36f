package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Config describes the node. A check whose function is nil is skipped.
type Config struct {
	// NodeName is the name of the Node.
	NodeName string
	// Sysctls is the directory of the sysctls, usually /proc/sys.
	Sysctls string
	// Families are the IP families that this node or a Service uses. The checks skip all other families.
	Families []inet.Family
	// Services are the networks of Services, which must not overlap with other networks.
	Services ServiceNetworks
	// Table is the name of the tables of Services, and First the priority of their first chains. Without a name, Look
	// does not search for chains that the kernel evaluates before them.
	Table string
	First int32
	// Leftovers counts the objects of kube-proxy. Rival looks for a running kube-proxy.
	Leftovers func() (takeover.Leftovers, error)
	Rival     func(context.Context) takeover.Rival
	// NodePorts returns the node ports that collide with another use of the port.
	NodePorts func() ([]model.Problem, error)
	// Monitors returns other programs that receive a copy of each change of the ruleset.
	Monitors func() ([]Monitor, error)
}

// Look runs all checks. If a check fails, its error becomes a finding.
func Look(ctx context.Context, c Config) (list view.Findings) {
	add := func(subject string, found view.Findings, err error) {
		if list = append(list, found...); err != nil {
			list.Add(view.Warning, view.CheckFailed, c.node(),
				fmt.Sprintf("cannot check %s: %v", subject, err),
				"unknown",
				"run the program with the capability NET_ADMIN in the node's network namespace",
				"only the program on this node")
		}
	}
	networks, err := host.ReadNetworks()
	dropped, _ := host.ReversePathDrops() // 0 if the kernel does not count them
	add("the networks of this node", slices.Concat(c.sysctls(&networks, dropped), c.overlaps(&networks)), err)
	drops, err := Drops(c.Families)
	add("chains of other programs", findings(drops, c.drop), err)
	if c.Table != "" {
		chains, err := c.chainsBefore()
		add("the order of chains", findings(chains, c.earlier), err)
	}
	if c.Leftovers != nil {
		left, err := c.Leftovers()
		add("leftovers of kube-proxy", c.kubeProxy(left, c.Rival(ctx)), err)
	}
	if c.NodePorts != nil {
		problems, err := c.NodePorts()
		add("the sockets of this node", findings(problems, nodePort), err)
	}
	if c.Monitors != nil {
		monitors, err := c.Monitors()
		add("programs that monitor nftables", c.slowCommits(monitors), err)
	}
	if c.serves(inet.IPv4) {
		disguises, err := host.Disguises()
		add("the routes", c.disguises(disguises), err)
		guarded, err := takeover.LoopbackGuarded()
		add("the chain KUBE-FIREWALL", c.localnet(guarded || err != nil), err)
	}
	list.Sort()
	return list
}

// findings returns a finding for each item of a list.
func findings[T any](list []T, finding func(*T) view.Finding) (found view.Findings) {
	for i := range list {
		found = append(found, finding(&list[i]))
	}
	return found
}

func (c *Config) node() string { return "Node " + c.NodeName }

// on returns a fix: a command, and the node on which to run it.
func (c *Config) on(command string) string { return fmt.Sprintf("on node %s: %s", c.NodeName, command) }

// kubeProxy reports a running kube-proxy, or leftovers of kube-proxy.
func (c *Config) kubeProxy(left takeover.Leftovers, rival takeover.Rival) view.Findings {
	there := counts(left)
	fix, affects := takeover.Remedy(c.NodeName)
	switch {
	case rival.Page != "":
		if there != "" {
			there = " (" + there + ")"
		}
		return view.Findings{view.NewFinding(view.Wrong, view.KubeProxyRunning, c.node(),
			fmt.Sprintf("a kube-proxy runs on this node beside kube-nftproxy, with its own rules%s: %s "+
				"answers", there, rival.Page),
			"both programs translate connections to Services. The rules of kube-nftproxy are evaluated first",
			fix,
			affects)}
	case rival.Unknown != nil:
		return view.Findings{view.NewFinding(view.Warning, view.KubeProxyUnknown, c.node(),
			fmt.Sprintf("a kube-proxy may run on this node: %s", strings.ReplaceAll(rival.Unknown.Error(), "\n", "; ")),
			"if it is a kube-proxy, both programs translate connections to Services. Until it answers or stops, "+
				"kube-nftproxy removes no rules of kube-proxy",
			c.on("ss -ltnp 'sport = :10249 or sport = :10256' shows the process. Stop it, or give it another port"),
			"only this process")}
	case there != "":
		return view.Findings{view.NewFinding(view.Warning, view.KubeProxyLeftovers, c.node(),
			"a kube-proxy has left rules on this node: "+there,
			"packets that kube-nftproxy does not translate, such as those to deleted Services, may match stale rules "+
				"of kube-proxy. Some IPVS entries stay until their connections end",
			fmt.Sprintf("delete the pod of kube-nftproxy on this node; its next start removes the rules. To find the pod: "+
				"kubectl -n kube-system get pods --field-selector spec.nodeName=%s. To list the rules: iptables-save "+
				"| grep KUBE-. If they return, a kube-proxy runs that does not listen at the ports 10249 and 10256: "+
				"stop it", c.NodeName),
			"only this node: its Services follow no changes for some seconds. The rules of kube-nftproxy and all "+
				"connections stay")}
	}
	return nil
}

// counts returns the numbers of leftovers by kind, or "".
func counts(left takeover.Leftovers) string {
	var parts []string
	for _, k := range takeover.Kinds {
		if n := left[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, n))
		}
	}
	return strings.Join(parts, ", ")
}

// nodePort converts a collision to a finding.
func nodePort(p *model.Problem) view.Finding {
	f := view.NewFinding(view.Warning, view.NodePortTaken, Object(*p),
		p.Reason,
		p.Impact,
		p.Fix,
		"the clients of this process, or of this node port on all nodes")
	if p.Event == "NodePortInEphemeralRange" {
		f.Severity, f.Reason, f.Affects = view.Note, view.NodePortEphemeral, "ports of outgoing connections of this node"
	}
	return f
}

// Object returns the kind and name of a problem's object.
func Object(p model.Problem) string {
	if p.Name.Namespace == "" {
		return p.Kind + " " + p.Name.Name
	}
	return p.Kind + " " + p.Name.String()
}

// serves reports whether the checks apply to a family.
func (c *Config) serves(f inet.Family) bool { return slices.Contains(c.Families, f) }
