package loopback

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// claim is a node port of a Service in one family. endpoints and affinity are used for TCP only.
type claim struct {
	key       model.Key
	name      model.PortName
	created   time.Time
	endpoints []netip.AddrPort
	affinity  time.Duration
}

// compare orders the claims of one node port as pkg/plan does: the older Service gets the node port.
func (c *claim) compare(d *claim) int {
	return cmp.Or(c.created.Compare(d.created), model.CompareNames(c.name.NamespacedName, d.name.NamespacedName))
}

// claimsOf lists the node ports of a Service, which may be nil, in the given families. If the source ranges of a node
// port do not admit the loopback address, it has no endpoints. As in kube-proxy, the external traffic policy selects
// the endpoints. With policy Local, only endpoints on this node serve, although the rules permit processes of this
// node to use all endpoints.
func claimsOf(s *model.Service, families []inet.Family) (list []*claim) {
	if s == nil {
		return nil
	}
	for _, p := range s.Ports {
		if !slices.Contains(families, p.Family) {
			continue
		}
		for i := range p.Frontends {
			f := &p.Frontends[i]
			if f.Addr.IsValid() {
				continue
			}
			endpoints, weights := p.Cluster, p.ClusterWeights
			if f.Local {
				endpoints, weights = p.Local, p.LocalWeights
			}
			if weights != nil {
				endpoints = slices.SortedFunc(slices.Values(p.Method.Fill(endpoints, weights)), netip.AddrPort.Compare)
			}
			if !f.Sources.Admits(inet.Localhost[p.Family]) {
				endpoints = nil
			}
			list = append(list, &claim{f.Key, p.Name, s.Created, endpoints, p.Affinity})
		}
	}
	return list
}

// claims are the node ports of all Services. The claims of one node port are in the order of [claim.compare].
type claims struct {
	byService map[types.NamespacedName][]*claim
	byKey     map[model.Key][]*claim
}

// set replaces the node ports of a Service. It returns the old and the new node ports, possibly with duplicates.
func (c *claims) set(name types.NamespacedName, list []*claim) (changed []model.Key) {
	for _, old := range c.byService[name] {
		changed = append(changed, old.key)
		at, found := c.find(old)
		if !found { // another port of the Service had the same node port
			continue
		}
		if c.byKey[old.key] = slices.Delete(c.byKey[old.key], at, at+1); len(c.byKey[old.key]) == 0 {
			delete(c.byKey, old.key)
		}
	}
	delete(c.byService, name)
	for _, now := range list {
		changed = append(changed, now.key)
		if at, again := c.find(now); !again {
			c.byKey[now.key] = slices.Insert(c.byKey[now.key], at, now)
		}
	}
	if len(list) > 0 {
		c.byService[name] = list
	}
	return changed
}

// find returns the index of a claim among those of its node port, and whether its Service is there.
func (c *claims) find(of *claim) (at int, found bool) {
	return slices.BinarySearchFunc(c.byKey[of.key], of, (*claim).compare)
}

// winner returns the claim that gets a node port, or nil if there is none.
func (c *claims) winner(k model.Key) *claim {
	if list := c.byKey[k]; len(list) > 0 {
		return list[0]
	}
	return nil
}
