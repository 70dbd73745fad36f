package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/loopback"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// names returns the names of all served Services, for shell completion.
func (c *Console) names(context.Context, url.Values) ([]string, error) {
	list := []string{}
	for _, n := range c.Source.Services() {
		if whyNot(c.Source.Get(n).Service) == "" {
			list = append(list, n.String())
		}
	}
	return list, nil
}

// query selects Services.
type query struct {
	// namespace is empty for all namespaces, selector for all labels.
	namespace, selector string
	// wanted are names, with or without a namespace, addresses with or without a port, and node ports; empty for all
	// Services.
	wanted []string
}

// mostDetailed is the number of Services in one answer with details that require a request to the API server.
const mostDetailed = 20

// services describes the selected Services. If the query has names or addresses, services adds details, and a message
// for each name or address without a Service.
func (c *Console) services(ctx context.Context, q query) (*view.Services, error) {
	wanted := q.wanted
	if len(wanted) == 0 {
		wanted = []string{""}
	}
	var labelled map[types.NamespacedName]bool
	if q.selector != "" {
		var err error
		if labelled, err = c.API.labelled(ctx, q.namespace, q.selector); err != nil {
			return nil, err
		}
	}
	var names []types.NamespacedName
	var missing []string
	seen := map[types.NamespacedName]bool{}
	unread := len(c.unreadKinds()) > 0 // a Service without its EndpointSlices would look as if it had no endpoints
	for _, want := range wanted {
		found, address, isTarget := c.find(q.namespace, want)
		served := 0
		for _, n := range found {
			if svc := c.Source.Get(n).Service; unread || svc == nil || want != "" && whyNot(svc) != "" {
				continue
			}
			served++
			if !seen[n] && (labelled == nil || labelled[n]) {
				seen[n], names = true, append(names, n)
			}
		}
		if served == 0 && want != "" {
			if isTarget {
				missing = append(missing, c.notServedAt(ctx, q.namespace, want, address))
				continue
			}
			namespace, name := split(q.namespace, want)
			missing = append(missing, c.notServed(ctx, namespace, name, found))
		}
	}
	slices.SortFunc(names, model.CompareNames)
	out, err := c.explain(ctx, names)
	out.NotFound = missing
	if len(q.wanted) > 0 {
		for i := range out.Services[:min(len(out.Services), mostDetailed)] {
			c.addSelector(ctx, &out.Services[i])
			c.addPods(ctx, &out.Services[i])
			addFirewall(&out.Services[i])
		}
	}
	return out, err
}

// explain describes the named Services.
func (c *Console) explain(ctx context.Context, names []types.NamespacedName) (*view.Services, error) {
	addresses := c.Loop.Facts().NodeAddresses
	out := &view.Services{
		Node: c.NodeName, NodePortAddresses: view.Texts(slices.Concat(addresses[:]...)), Unread: c.unreadKinds(),
		Services: []view.Service{},
	}
	if since := c.unanswered(); !since.IsZero() {
		out.Unanswered = int64(time.Since(since).Seconds())
	}
	behaviours := c.behaviours(ctx, names)
	var keys []model.Key
	err := c.each(ctx, names, c.startsInTime(ctx), func(x *model.Explanation, s *view.Service) {
		of := behaviours[x.Name]
		s.RefusesUnusedPorts, s.AnswersPing = texts(of.Refused), texts(of.Pinged)
		addNAT(s, x, of.NAT)
		out.Services = append(out.Services, *s)
		for _, p := range x.Ports {
			for i := range p.Frontends {
				keys = append(keys, p.Frontends[i].Key)
			}
		}
	})
	c.countConnections(out, keys)
	return out, err
}

// each calls f with each named Service that is served, and its explanation.
func (c *Console) each(
	ctx context.Context, names []types.NamespacedName, starts map[types.NamespacedName]*model.Starts,
	f func(*model.Explanation, *view.Service),
) error {
	facts, options := c.Loop.Facts(), c.ModelOptions()
	lost, err := c.lost(ctx, names)
	own, _ := host.Addresses() // after an error, one kind of note is missing
	for _, n := range names {
		options.Starts = starts[n]
		x := model.Explain(c.Source.Get(n), facts.Node, options)
		if x == nil {
			continue
		}
		s := serviceView(x, &facts, lost)
		addUnserved(s, c.Families)
		c.addLoopback(s, x)
		notes, wrong := c.notes(x, &facts, own)
		s.Notes, s.Problems = notes, append(s.Problems, wrong...)
		f(x, s)
	}
	return err
}

// behaviours returns the behaviours of the addresses of the named Services. It returns none if no flag enables them, or
// if the loop is busy.
func (c *Console) behaviours(ctx context.Context, names []types.NamespacedName) map[types.NamespacedName]proxy.Behaviours {
	if o := c.ModelOptions(); !o.UnusedPorts.Any() && !o.Ping.Answers() && !o.Direct {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	list, _ := c.Loop.Behaviours(ctx, names) // none after an error
	return list
}

// texts returns the first addresses or source ranges of a list as text, and the number of the others.
func texts[T fmt.Stringer](all []T) (list []string) {
	const most = 100
	list = append(list, view.Texts(all[:min(len(all), most)])...)
	if more := len(all) - most; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return list
}

// addNAT shows the ports of a Service that the planner gives NAT instead of direct server return, and the reasons.
func addNAT(s *view.Service, x *model.Explanation, list []plan.NAT) {
	for i := range x.Ports {
		p := &x.Ports[i]
		at := slices.IndexFunc(list, func(n plan.NAT) bool {
			return n.Port == p.Name && n.Protocol == p.Protocol && n.Family == p.Family
		})
		if at < 0 || p.Direct == nil {
			continue
		}
		v, nat := &s.Ports[i], p.WithoutDirect()
		v.DirectReturn, v.Algorithm = false, algorithm(nat)
		shares := sharesOf(nat)
		for j := range v.Endpoints {
			v.Endpoints[j].Share = shares[p.Candidates[j].Addr]
		}
		s.Notes = append(s.Notes, fmt.Sprintf("%s port %q uses NAT: %s", v.Family, v.Name, list[at].Reason))
	}
}

// addUnserved sets the outcome of frontends whose IP family this node does not serve.
func addUnserved(s *view.Service, families []inet.Family) {
	served := view.Texts(families)
	for p, f := range s.Frontends() {
		if !slices.Contains(served, p.Family) && f.LostTo == "" {
			f.SetOutcome(outcome.UnservedFamily)
		}
	}
}

// addLoopback adds the loopback addresses of a Service's node ports, and a problem for each port on which the program
// cannot listen.
func (c *Console) addLoopback(s *view.Service, x *model.Explanation) {
	for i := range x.Ports {
		for j := range x.Ports[i].Frontends {
			at, err := c.LoopbackAt(x.Ports[i].Frontends[j].Key)
			f := &s.Ports[i].Frontends[j]
			switch {
			case errors.Is(err, loopback.ErrProtocol):
				f.LoopbackRefused = true
			case err != nil:
				remedy := fmt.Sprintf("ss -ltnp sport = :%d shows the process that has the port", at.Port())
				if limit, ok := errors.AsType[*descriptors.Error](err); ok {
					remedy = limit.Fix()
				}
				s.Problems = append(s.Problems, fmt.Sprintf("not served at %s: %v (%s)", at, err, remedy))
			case at.IsValid():
				f.Loopback = at.Addr().String()
				if outcome.Of(f.Reason) == outcome.NoNodeAddress {
					f.Message = "served on loopback only: no other address of this node is in --nodeport-addresses"
				}
			}
		}
	}
}

// lost returns the frontends of the named Services that other Services already use, with the names of the other
// Services. It returns none if the loop is busy.
func (c *Console) lost(ctx context.Context, names []types.NamespacedName) (map[claim]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	conflicts, err := c.Loop.Conflicts(ctx, names)
	lost := map[claim]string{}
	for _, f := range conflicts {
		lost[claim{f.Loser, f.Key}] = f.WinnerText()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return lost, err
}

// startsInTime returns the starting endpoints of all Services. It returns none if the loop is busy.
func (c *Console) startsInTime(ctx context.Context) map[types.NamespacedName]*model.Starts {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	starts, err := c.Loop.Starts(ctx)
	if err != nil {
		klog.V(2).InfoS("Shares of starting endpoints are shown as full", "err", err)
	}
	return starts
}

// countConnections sets the numbers of connections of the frontends, in the order in which they are shown. If the
// kernel's counters cannot be read in time, the numbers are those of the last reading.
func (c *Console) countConnections(v *view.Services, keys []model.Key) {
	const patience = time.Second
	counts, err := c.Connections(keys, patience)
	if err != nil {
		klog.V(2).InfoS("Numbers of connections may be old", "err", err)
	}
	for i := range v.Services {
		for p, f := range v.Services[i].Frontends() {
			n := counts[0]
			counts = counts[1:]
			p.Full = n[outcome.AtMaximum]
			refused, dropped := n.OfFrontend()
			f.Connections, f.Refused, f.Dropped = &n[outcome.Forwarded], &refused, dropped
		}
	}
}

// split returns the namespace and the name in NAMESPACE/NAME or NAME. The name of a pod with host ports is pod/NAME.
func split(namespace, want string) (string, string) {
	if _, isPod := model.PodOf(types.NamespacedName{Name: want}); isPod {
		return namespace, want
	}
	if before, name, found := strings.Cut(want, "/"); found {
		return before, name
	}
	return namespace, want
}

// find returns the names of the stored Services with a name or an address; for "", of all Services. It searches one
// namespace, or all if namespace is empty. It also returns the address.
func (c *Console) find(namespace, want string) (found []types.NamespacedName, address target, isTarget bool) {
	to, isTarget := parseTarget(want)
	facts := c.Loop.Facts()
	to.NodePorts = slices.Contains(facts.NodeAddresses[inet.IPv4], to.Addr) || slices.Contains(facts.NodeAddresses[inet.IPv6], to.Addr)
	inNamespace, name := split(namespace, want)
	for _, n := range c.Source.Services() {
		if isTarget && (namespace == "" || n.Namespace == namespace) {
			if o := c.Source.Get(n); o.Service != nil && mentions(o, facts.Node, c.ModelOptions(), to) {
				found = append(found, n)
			}
		} else if !isTarget && (inNamespace == "" || n.Namespace == inNamespace) && (name == "" || n.Name == name) {
			found = append(found, n)
		}
	}
	return found, to, isTarget
}

// parseTarget parses an address, an address with a port, or a node port. A name of a Service is none of these.
func parseTarget(text string) (t target, ok bool) {
	if port, err := strconv.ParseUint(text, 10, 16); err == nil {
		return target{Port: uint16(port)}, true
	}
	if at, err := model.ParseAddrPort(text); err == nil {
		return target{Addr: at.Addr(), Port: at.Port()}, true
	}
	addr, err := model.ParseAddr(text)
	return target{Addr: addr}, err == nil
}

// addPods adds the names of the pods of a Service's endpoints.
func (c *Console) addPods(ctx context.Context, s *view.Service) {
	pods := map[podAt]string{}
	c.pods(ctx, s.Namespace, s.Name, func(slice, address, pod string) { pods[podAt{slice, address}] = pod })
	name := func(list []view.Endpoint) {
		for i := range list {
			addr, _, err := net.SplitHostPort(list[i].Address)
			if err != nil {
				addr = list[i].Address
			}
			list[i].Pod = pods[podAt{list[i].Slice, addr}]
		}
	}
	for i := range s.Ports {
		name(s.Ports[i].Endpoints)
	}
	name(s.Unusable)
}

// claim is a frontend that a service port claims.
type claim struct {
	port model.PortName
	key  model.Key
}

// unanswered returns the time since when the API server has not answered this process or, if it has not confirmed the
// snapshot, the process that wrote the snapshot; zero while it answers.
func (c *Console) unanswered() (since time.Time) {
	if c.API == nil {
		return since
	}
	if c.Snapshot != nil {
		since, _ = c.Snapshot()
	}
	if lost := c.API.recorded().Since; since.IsZero() && lost != nil {
		since = *lost
	}
	return since
}

// unreadKinds returns the required kinds of objects that the program has not read yet: those whose requests fail, or
// both.
func (c *Console) unreadKinds() (kinds []string) {
	select {
	case <-c.Source.Loaded():
		return nil
	default:
	}
	if c.API == nil {
		return []string{"the folder"}
	}
	required := []string{"endpointslices", "services"}
	for _, f := range c.API.recorded().Failures {
		if !f.Over && slices.Contains(required, f.Resource) {
			kinds = append(kinds, f.Resource)
		}
	}
	if len(kinds) == 0 {
		return required
	}
	return kinds
}
