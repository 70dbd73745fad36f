package console

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/loopback"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// names returns the names of all Services, for shell completion.
func (c *Console) names() []string {
	list := []string{}
	for _, n := range c.Source.Services() {
		list = append(list, n.String())
	}
	return list
}

// services describes one Service, those of a namespace, or all.
func (c *Console) services(ctx context.Context, namespace, name string) (*view.Services, error) {
	names := c.find(namespace, name)
	out, err := c.explain(ctx, names)
	if name != "" && len(out.Services) == 0 {
		return nil, c.notServed(ctx, namespace, name)
	}
	if name != "" && len(out.Services) == 1 {
		c.addSelector(ctx, &out.Services[0])
		addFirewall(&out.Services[0])
	}
	return out, err
}

// explain describes the named Services.
func (c *Console) explain(ctx context.Context, names []types.NamespacedName) (*view.Services, error) {
	facts := c.Loop.Facts()
	out := &view.Services{Node: c.NodeName, NodePortAddresses: []string{}, Services: []view.Service{}}
	for _, list := range facts.NodeAddresses {
		for _, a := range list {
			out.NodePortAddresses = append(out.NodePortAddresses, a.String())
		}
	}
	out.Unread = c.unreadKinds()
	lost, err := c.lost(ctx, names)
	noter := c.newNoter(&facts)
	var keys []model.Key
	for _, n := range names {
		if x := model.Explain(c.Source.Service(n), c.Source.Slices(n), facts.Node, c.ModelOptions()); x != nil {
			s := serviceView(x, &facts, lost)
			c.addLoopback(s, x)
			notes, wrong := noter.notes(x)
			s.Notes, s.Problems = notes, append(s.Problems, wrong...)
			out.Services = append(out.Services, *s)
			for _, p := range x.Ports {
				for i := range p.Frontends {
					keys = append(keys, p.Frontends[i].Key)
				}
			}
		}
	}
	c.countConnections(out, keys)
	return out, err
}

// addLoopback adds the loopback addresses of a Service's node ports, and a problem for each port on which the program cannot listen.
func (c *Console) addLoopback(s *view.Service, x *model.Explanation) {
	for i := range x.Ports {
		for j := range x.Ports[i].Frontends {
			at, err := c.LoopbackAt(x.Ports[i].Frontends[j].Key)
			f := &s.Ports[i].Frontends[j]
			switch {
			case errors.Is(err, loopback.ErrProtocol):
				f.LoopbackRefused = true
			case err != nil:
				s.Problems = append(s.Problems, fmt.Sprintf("not served at %s: %v (ss -ltnp sport = :%d shows who has it)", at, err, at.Port()))
			case at.IsValid():
				f.Loopback = at.Addr().String()
				if f.Does == noNodeAddress {
					f.Does = "served on loopback only: no other address of this node is in --nodeport-addresses"
				}
			}
		}
	}
}

// lost returns the frontends of the named Services that other Services have. It returns none if the loop is busy.
func (c *Console) lost(ctx context.Context, names []types.NamespacedName) (map[claim]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	conflicts, err := c.Loop.Conflicts(ctx, names)
	lost := map[claim]string{}
	for _, f := range conflicts {
		lost[claim{f.Loser, f.Key}] = f.Winner.String()
	}
	return lost, ctxErrorOnly(err)
}

// countConnections sets the numbers of connections of the frontends, in the order in which they are shown. If the kernel's
// counters cannot be read in time, the numbers are those of the last reading.
func (c *Console) countConnections(v *view.Services, keys []model.Key) {
	const patience = time.Second
	counts, err := c.Connections(keys, patience)
	if err != nil {
		klog.V(2).InfoS("Numbers of connections may be old", "err", err)
	}
	for i := range v.Services {
		for j := range v.Services[i].Ports {
			fronts := v.Services[i].Ports[j].Frontends
			for k := range fronts {
				n := counts[0]
				counts = counts[1:]
				refused := uint64(0)
				for _, r := range n.Refused {
					refused += r
				}
				fronts[k].Connections, fronts[k].Refused = &n.Connections, &refused
			}
		}
	}
}

// ctxErrorOnly drops an error that only means that the loop is busy.
func ctxErrorOnly(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// find returns the names of Services in a namespace. Without a namespace, it searches all.
func (c *Console) find(namespace, name string) (found []types.NamespacedName) {
	for _, n := range c.Source.Services() {
		if (namespace == "" || n.Namespace == namespace) && (name == "" || n.Name == name) {
			found = append(found, n)
		}
	}
	return found
}

// claim is a frontend that a service port claims.
type claim struct {
	port model.PortName
	key  model.Key
}

// unreadKinds returns the required kinds of objects that cannot be read.
func (c *Console) unreadKinds() (kinds []string) {
	select {
	case <-c.Source.Synced():
		return nil
	default:
	}
	if c.API == nil {
		return []string{"the folder"}
	}
	if kinds = c.API.failing(); len(kinds) == 0 {
		kinds = []string{"services", "endpointslices"} // it has just started
	}
	return kinds
}
