package console

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// causes returns findings that need the daemon's knowledge: its identity, its permissions, and other programs that write its
// tables. local are the addresses of the endpoints on this node.
func (c *Console) causes(s *view.Status, local []netip.Addr) []view.Finding {
	list := append(c.unserved(), unmet(c.Notes)...)
	list = append(list, c.unread(s)...)
	list = append(list, c.identity(s)...)
	list = append(list, rivals(s)...)
	pods := podsAmong(local)
	return append(append(list, c.strangers(pods)...), c.bridged(pods)...)
}

// unmet reports settings without effect that need attention, such as gates and fields of another version of kube-proxy.
func unmet(notes []config.Note) (list []view.Finding) {
	for _, n := range notes {
		if n.Finding {
			list = append(list, view.Finding{Severity: view.Warning, What: "configuration, " + n.Subject + ": " + n.Text,
				Impact: "all other settings of the configuration are in force", Fix: "remove it from the configuration, or update kube-nftproxy to a version that has it"})
		}
	}
	return list
}

// unread reports objects that the API server does not return: any failure while nothing is programmed because of it, later only
// refusals.
func (c *Console) unread(s *view.Status) (list []view.Finding) {
	const lately = 30 * time.Second // retries are more frequent
	waits := s.Loop != nil && s.Loop.Waits != ""
	impact := "the program sees no changes, and the rules stay as they are"
	if waits {
		impact = "no Service is programmed until these have been read. The rules of an earlier process stay in place"
	}
	if waits && !s.API.Answers {
		return []view.Finding{{
			Severity: view.Wrong, What: "the API server does not answer: " + s.API.Error, Impact: impact,
			Fix: "check the address and the certificate authority in the kubeconfig. The address must be reachable without Services: do not use a cluster IP such as 10.96.0.1",
		}}
	}
	for _, same := range alikeFailures(s.API.Failures) {
		f := same[0]
		if !waits && (!f.Forbidden && !f.Unauthorized || s.Time.Sub(f.Last) > lately) {
			continue
		}
		var resources []string
		for _, f := range same {
			resources = append(resources, f.Resource)
		}
		finding := view.Finding{
			Severity: view.Wrong, What: fmt.Sprintf("cannot read %s: %s", strings.Join(resources, ", "), f.Error), Impact: impact,
			Fix: "check the log of this program and the log of the API server",
		}
		switch {
		case f.Forbidden:
			user := "(the one named above)"
			if found := whoIsForbidden.FindStringSubmatch(f.Error); found != nil {
				user = found[1]
			}
			finding.Fix = "kubectl create clusterrolebinding kube-nftproxy --clusterrole=system:node-proxier --user=" + user
		case f.Unauthorized:
			finding.Fix = "the API server rejects the token or the client certificate: put a valid one into the kubeconfig"
		}
		list = append(list, finding)
	}
	return list
}

// whoIsForbidden matches the user's name in an API server's error.
var whoIsForbidden = regexp.MustCompile(`User "([^"]+)"`)

// alikeFailures groups failures with the same fix.
func alikeFailures(list []view.WatchFailure) (groups [][]view.WatchFailure) {
	for _, f := range list {
		like := func(g []view.WatchFailure) bool {
			return f.Forbidden && g[0].Forbidden || f.Unauthorized && g[0].Unauthorized || f.Error == g[0].Error
		}
		if i := slices.IndexFunc(groups, like); i >= 0 {
			groups[i] = append(groups[i], f)
		} else {
			groups = append(groups, []view.WatchFailure{f})
		}
	}
	return groups
}

// identity reports that the program does not run on the Node with its name.
func (c *Console) identity(s *view.Status) []view.Finding {
	node := c.Source.Node()
	if node == nil {
		if c.API == nil || s.Loop == nil || s.Loop.Waits != "" || !s.API.Answers {
			return nil // unknown yet
		}
		return []view.Finding{{
			Severity: view.Wrong, What: fmt.Sprintf("there is no Node %q", c.NodeName),
			Impact: "policy Local, zones and node ports: the program finds no endpoint on this node, and health check node ports report no local endpoints",
			Fix:    "set --hostname-override to the name of this machine in the output of kubectl get nodes",
		}}
	}
	own, err := host.Addresses()
	if err != nil {
		return nil
	}
	var internal []string
	for _, addr := range model.InternalIPs(node) {
		if slices.Contains(own, addr) {
			return nil
		}
		internal = append(internal, addr.String())
	}
	if len(internal) == 0 {
		return nil
	}
	return []view.Finding{{
		Severity: view.Wrong,
		What:     fmt.Sprintf("no interface here has an address of Node %s (%s)", c.NodeName, strings.Join(internal, ", ")),
		Impact: "all Services, if the pod does not use the host network; node ports and policy Local, if the name belongs to another Node. None, " +
			"if a gateway outside the node translates the Node's addresses",
		Fix: "set hostNetwork: true in the pod's spec, or set --hostname-override to the name of this Node",
	}}
}

// rivals reports another instance of the program with another plan, for example with other flags: each reverts the other's
// changes.
func rivals(s *view.Status) []view.Finding {
	const (
		lately = 5 * time.Minute
		often  = 3 // a replacement may take turns with the old instance before that exits
	)
	if s.Loop == nil {
		return nil
	}
	times, by := 0, ""
	for _, r := range s.Loop.Repairs {
		if s.Time.Sub(r.Time) < lately && (r.Program == "kube-nftproxy" || r.Program == "kube-proxy") {
			times, by = times+1, r.By
		}
	}
	if times < often {
		return nil
	}
	return []view.Finding{{
		Severity: view.Wrong,
		What:     fmt.Sprintf("another %s writes the same tables with other contents: %d of the last repairs reverted its changes", by, times),
		Impact:   "all Services: the rules alternate between the two programs",
		Fix:      "stop one of them: ps -eo pid,lstart,args | grep kube-nftproxy",
	}}
}

// podsAmong returns the pods' addresses among those of local endpoints, sorted, without duplicates; the others are the node's
// own.
func podsAmong(local []netip.Addr) []netip.Addr {
	own, err := host.Addresses()
	if err != nil {
		return nil
	}
	slices.SortFunc(local, netip.Addr.Compare)
	local = slices.Compact(local)
	return slices.DeleteFunc(local, func(addr netip.Addr) bool { return addr.IsLoopback() || slices.Contains(own, addr) })
}

// strangers reports local pods that the configuration does not recognise by their addresses.
func (c *Console) strangers(pods []netip.Addr) []view.Finding {
	mode := c.Config.DetectLocalMode
	if mode != config.ClusterCIDR && mode != config.NodeCIDR {
		return nil
	}
	var strange []string
	prefixes := c.podPrefixes()
	for _, addr := range pods {
		if p := prefixes[inet.FamilyOf(addr)]; p.IsValid() && !p.Contains(addr) {
			strange = append(strange, addr.String())
		}
	}
	if len(strange) == 0 {
		return nil
	}
	const few = 3
	some := strings.Join(strange[:min(few, len(strange))], ", ")
	if more := len(strange) - few; more > 0 {
		some += fmt.Sprintf(" and %d more", more)
	}
	setting := "--cluster-cidr"
	if mode == config.NodeCIDR {
		setting = "the Node's podCIDRs"
	}
	return []view.Finding{{
		Severity: view.Warning, What: fmt.Sprintf("pods on this node have addresses outside of %s (%s): %s", setting, joinPrefixes(prefixes), some),
		Impact: "source addresses: the rules masquerade connections from these pods to Services as external traffic, so that endpoints see the node's address",
		Fix:    "set clusterCIDR in the configuration to all prefixes of pods, or set another detectLocalMode",
	}}
}

// bridged reports pods on a bridge that reply to each other without passing the kernel's rules. If one connects to a Service
// whose endpoint is the other, it gets replies from an unexpected address. Masqueraded connections work: their replies come from
// this node.
func (c *Console) bridged(pods []netip.Addr) (list []view.Finding) {
	bridges, err := host.Bridges()
	if all, _ := config.Masquerading(c.Config); all || err != nil || len(bridges) == 0 {
		return nil
	}
	for f, name := range [...]string{"iptables", "ip6tables"} {
		setting := "bridge-nf-call-" + name
		if text, err := os.ReadFile("/proc/sys/net/bridge/" + setting); err == nil && strings.TrimSpace(string(text)) == "1" {
			continue
		}
		for _, b := range bridges {
			behind := func(addr netip.Addr) bool { return inet.FamilyOf(addr) == inet.Family(f) && within(b.Prefixes, addr) }
			if !slices.ContainsFunc(pods, behind) {
				continue
			}
			list = append(list, view.Finding{
				Severity: view.Wrong, What: fmt.Sprintf("replies between pods on bridge %s bypass the rules of this node (net.bridge.%s is not 1)", b.Name, setting),
				Impact: fmt.Sprintf("%s connections of a pod to a Service whose endpoint is on the same bridge fail: the reply is not translated back", inet.Family(f)),
				Fix:    "modprobe br_netfilter; sysctl -w net.bridge." + setting + "=1",
			})
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
