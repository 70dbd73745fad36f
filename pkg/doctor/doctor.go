package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Config lists the checks. A check whose function is nil is skipped.
type Config struct {
	// Sysctls is the directory of the sysctls, usually /proc/sys.
	Sysctls  string
	Families []inet.Family
	// Drops returns the chains that drop forwarded packets by default.
	Drops func([]inet.Family) ([]Drop, error)
	// Leftovers counts kube-proxy's objects. Rival reports whether one answers on its ports.
	Leftovers func() (takeover.Leftovers, error)
	Rival     func(context.Context) bool
	// NodePorts returns the collisions of node ports.
	NodePorts func() ([]model.Problem, error)
	// Others are findings of the caller, which are sorted among these.
	Others []view.Finding
}

// Look runs all checks. A failed check is a finding, too.
func Look(ctx context.Context, c Config) []view.Finding {
	list := append(slices.Clip(c.Others), c.sysctls()...)
	unable := func(what string, err error) {
		if err != nil {
			list = append(list, view.Finding{
				Severity: view.Warning, What: fmt.Sprintf("cannot check %s: %v", what, err), Impact: "unknown",
				Fix: "run kube-nftproxy with the capability NET_ADMIN in the node's network namespace",
			})
		}
	}
	if c.Drops != nil {
		drops, err := c.Drops(c.Families)
		for _, d := range drops {
			list = append(list, d.finding())
		}
		unable("chains of other programs", err)
	}
	if c.Leftovers != nil {
		left, err := c.Leftovers()
		list = append(list, kubeProxy(left, c.Rival != nil && c.Rival(ctx))...)
		unable("leftovers of kube-proxy", err)
	}
	if c.NodePorts != nil {
		problems, err := c.NodePorts()
		for _, p := range problems {
			list = append(list, nodePort(p))
		}
		unable("the sockets of this node", err)
	}
	order := []view.Severity{view.Wrong, view.Warning, view.Note}
	slices.SortStableFunc(list, func(a, b view.Finding) int {
		return cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity))
	})
	return list
}

// Drop is a chain that drops forwarded packets unless a rule accepts them.
type Drop struct {
	// Chain is its name. Fix is a command that changes its policy to accept.
	Chain, Fix string
	// Rules reports whether it has any rules, which may accept.
	Rules bool
}

func (d Drop) finding() view.Finding {
	f := view.Finding{
		Severity: view.Warning, What: fmt.Sprintf("%s drops forwarded packets that none of its rules accepts (policy drop)", d.Chain),
		Impact: "pods and external clients cannot reach Services, unless the rules of the pod network accept the packets. Connections of the node " +
			"itself are not affected",
		Fix: d.Fix,
	}
	if !d.Rules {
		f.Severity = view.Wrong
		f.What = fmt.Sprintf("%s drops all forwarded packets (policy drop, and it has no rules)", d.Chain)
	}
	return f
}

// Drops returns such chains of nftables, including iptables-nft, and of iptables-legacy.
func Drops(families []inet.Family) (list []Drop, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	seen := map[string]bool{}
	for _, f := range families {
		chains, err := conn.BaseChains(f)
		if err != nil {
			return list, err
		}
		for _, ch := range chains {
			if d, drops := dropping(&ch); drops && !seen[d.Chain] {
				seen[d.Chain] = true
				list = append(list, d)
			}
		}
	}
	legacy, err := takeover.LegacyForwardDrops()
	for _, command := range legacy {
		list = append(list, Drop{Chain: "chain FORWARD of " + command, Fix: command + " -P FORWARD ACCEPT", Rules: true})
	}
	return list, err
}

func dropping(ch *nft.BaseChain) (d Drop, drops bool) {
	if !ch.Drops || ch.Type != "filter" || ch.Hook != unix.NF_INET_FORWARD {
		return d, false
	}
	d = Drop{
		Chain: fmt.Sprintf("table %s %s, chain %s", ch.Family, ch.Table, ch.Name), Rules: ch.Uses > 0,
		Fix: fmt.Sprintf("nft chain %s %s %s '{ policy accept; }'", ch.Family, ch.Table, ch.Name),
	}
	if ch.Table == "filter" && ch.Name == "FORWARD" {
		command := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[ch.Family]
		if command != "" {
			d.Fix = command + " -P FORWARD ACCEPT"
		}
	}
	return d, true
}

// kubeProxy reports a running kube-proxy, or the leftovers of one.
func kubeProxy(left takeover.Leftovers, runs bool) []view.Finding {
	var parts []string
	for _, k := range takeover.Kinds {
		if n := left[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, n))
		}
	}
	there := strings.Join(parts, ", ")
	switch {
	case runs:
		if there != "" {
			there = " (" + there + ")"
		}
		return []view.Finding{{
			Severity: view.Wrong, What: "a kube-proxy runs on this node beside kube-nftproxy, with its own rules" + there,
			Impact: "both programs translate connections to Services: the first rule that matches wins", Fix: "kubectl -n kube-system delete daemonset kube-proxy",
		}}
	case there != "":
		return []view.Finding{{
			Severity: view.Warning, What: "a kube-proxy has left rules on this node: " + there,
			Impact: "new connections may match stale rules of kube-proxy first. Some IPVS entries stay until their connections end",
			Fix:    "restart kube-nftproxy, which removes them (to list them: iptables-save | grep KUBE-)",
		}}
	}
	return nil
}

// nodePort converts a collision to a finding.
func nodePort(p model.Problem) view.Finding {
	object := p.Kind + " " + p.Name.String()
	if p.Name.Namespace == "" {
		object = p.Kind + " " + p.Name.Name
	}
	severity := view.Warning
	if p.Event == "NodePortInEphemeralRange" {
		severity = view.Note
	}
	return view.Finding{Severity: severity, What: object + ": " + p.Reason, Impact: p.Impact, Fix: p.Fix}
}
