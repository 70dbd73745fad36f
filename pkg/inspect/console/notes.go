package console

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// notes returns facts that the ports and endpoints of a Service do not show: those that are no errors, in the order of
// the Service's fields, and those that are errors. own are this node's addresses.
func (c *Console) notes(x *model.Explanation, facts *proxy.Facts, own []netip.Addr) (notes, wrong []string) {
	notes = append(notes, x.Notes...)
	for _, sp := range x.Ports {
		for i := range sp.Frontends {
			f := &sp.Frontends[i]
			if (f.Kind == model.ExternalIP || f.Kind == model.LoadBalancer) && slices.Contains(own, f.Addr) {
				notes = append(notes, fmt.Sprintf("%s is an address of this node: packets to %s reach this Service, and a process of the node "+
					"that listens there does not receive them", f.Addr, f.Address()))
			}
		}
		for i := range sp.Candidates {
			if addr := sp.Candidates[i].Addr.Addr(); within(facts.ServiceCIDRs[sp.Family], addr) {
				wrong = append(wrong, fmt.Sprintf("endpoint %s is an address of a Service: the kernel translates a packet only once, so it does not reach the pods; use "+
					"the addresses of the pods", sp.Candidates[i].Addr))
			}
		}
	}
	for _, why := range c.Broken(x.Name) {
		wrong = append(wrong, "load balancers get no answer at the health check node port, and send no traffic to "+
			"this node: "+why)
	}
	return unique(notes), unique(wrong)
}

func unique(list []string) []string {
	known := make(map[string]struct{}, len(list))
	var out []string
	for _, s := range list {
		if _, again := known[s]; !again {
			known[s], out = struct{}{}, append(out, s)
		}
	}
	return out
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// notServed returns the reason why a Service is not served. stored are the Services with this name that the program has
// read.
func (c *Console) notServed(ctx context.Context, namespace, name string, stored []types.NamespacedName) string {
	full := name
	if namespace != "" {
		full = namespace + "/" + name
	}
	if unread := c.unreadKinds(); len(unread) > 0 {
		return fmt.Sprintf("the program cannot describe Service %s: it has not read %s yet", full,
			strings.Join(unread, ", "))
	}
	list, known := c.API.live(ctx, namespace, name, c.ServiceProxyName)
	if !known { // no API server, or no answer
		for _, n := range stored {
			if svc := c.Source.Get(n).Service; svc != nil {
				list = append(list, declared{Name: n, WhyNot: whyNot(svc)})
			}
		}
	}
	if len(list) > 0 {
		return fmt.Sprintf("Service %s is not served by kube-nftproxy: %s", list[0].Name,
			cmp.Or(list[0].WhyNot, "the program has not received it; kube-nftproxy status shows whether changes "+
				"arrive"))
	}
	text := fmt.Sprintf("there is no Service %s in the cluster", full)
	switch {
	case c.API == nil:
		text = fmt.Sprintf("there is no Service %s in the manifests of this node, except for Services that it does not serve: headless ones, type ExternalName, "+
			"and Services of another proxy (label service.kubernetes.io/service-proxy-name)", full)
	case !known:
		text = fmt.Sprintf("this node has read no Service %s, and the API server does not answer", full)
	}
	if alike := c.alike(namespace, name); len(alike) > 0 {
		text += "; did you mean " + strings.Join(alike, ", ") + "?"
	}
	return text
}

// notServedAt returns the reason why no served Service has an address or a node port: another proxy serves the Service
// that has it, or there is no such Service.
func (c *Console) notServedAt(ctx context.Context, namespace, want string, address target) string {
	if unread := c.unreadKinds(); len(unread) > 0 {
		return fmt.Sprintf("the program cannot know whether a Service has %s: it has not read %s "+
			"yet", want, strings.Join(unread, ", "))
	}
	others, known := c.API.others(ctx, namespace, c.ServiceProxyName)
	facts := c.Loop.Facts()
	for i := range others {
		o := model.Objects{Service: &others[i]}
		if d := declaredAs(o.Service, c.ServiceProxyName); d.WhyNot != "" && mentions(o, facts.Node, c.ModelOptions(), address) {
			return fmt.Sprintf("Service %s has %s, and is not served by kube-nftproxy: %s", d.Name, want, d.WhyNot)
		}
	}
	text := fmt.Sprintf("no Service that this node serves has %s, and no endpoint of such a Service", want)
	if known {
		text = fmt.Sprintf("no Service has %s, and no endpoint of a Service that this node serves", want)
	}
	if address.Addr.IsValid() && within(facts.ServiceCIDRs[inet.FamilyOf(address.Addr)], address.Addr) {
		then := "so this node drops packets to it, unless another program translates them"
		if c.Tables.RouteUnused {
			then = "and in mode " + string(c.Config.Mode) + ", packets to it follow the routes of this node"
		}
		text += "; it is an address of a ServiceCIDR, " + then
	}
	return text
}

// alike returns Services with the same name in another namespace, or with a similar name.
func (c *Console) alike(namespace, name string) (list []string) {
	const few = 3
	for _, n := range c.Source.Services() {
		if len(list) < few && (n.Name == name || (namespace == "" || n.Namespace == namespace) && nearly(n.Name, name)) {
			list = append(list, n.String())
		}
	}
	return list
}

// nearly reports whether two names are equal, or differ by one letter, by two swapped letters, or by a suffix after
// three letters or more.
func nearly(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	begin := 0
	for begin < len(a) && a[begin] == b[begin] {
		begin++
	}
	end := 0
	for end < len(a)-begin && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	switch left, right := len(a)-begin-end, len(b)-begin-end; {
	case begin == len(a) && begin >= 3, left <= 1 && right <= 1:
		return true
	default:
		return left == 2 && right == 2 && a[begin] == b[begin+1] && a[begin+1] == b[begin]
	}
}

// addSelector adds a note to a Service with a port without endpoints: the command that lists its pods, or that it has
// no selector.
func (c *Console) addSelector(ctx context.Context, s *view.Service) {
	none := func(p view.ServicePort) bool { return p.Why != "" }
	if !slices.ContainsFunc(s.Ports, none) {
		return
	}
	list, known := c.API.live(ctx, s.Namespace, s.Name, c.ServiceProxyName)
	if !known || len(list) == 0 {
		return
	}
	why, selector := model.WhyNoSelector, list[0].Selector
	if len(selector) > 0 {
		why = model.WhySelector
	}
	for i := range s.Ports {
		s.Ports[i].Why = strings.Replace(s.Ports[i].Why, model.WhyUnknownSelector, why, 1)
	}
	if len(selector) > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("to list its pods: kubectl -n %s get pods -l %s", s.Namespace, labels.FormatLabels(selector)))
	} else {
		s.Notes = append(s.Notes, "it has no selector: create an EndpointSlice with the label "+
			"kubernetes.io/service-name: "+s.Name)
	}
}

// addFirewall adds the chains that may block load balancers' health checks of a Service.
func addFirewall(s *view.Service) {
	if s.HealthCheckNodePort == 0 {
		return
	}
	conn, err := nft.Open()
	if err != nil {
		return
	}
	defer conn.Close() //nolint:errcheck // read only
	chains, err := read.BaseChains(conn, inet.Families[:]...)
	if err != nil {
		return
	}
	for _, ch := range chains {
		if ch.Hook == unix.NF_INET_LOCAL_IN && ch.Drops {
			s.Notes = append(s.Notes, fmt.Sprintf("chain %s of table %s %s drops packets to this node that it does not accept: if load "+
				"balancers report the node as failed, accept TCP port %d in this "+
				"chain", ch.Name, ch.Family, ch.Table, s.HealthCheckNodePort))
		}
	}
}
