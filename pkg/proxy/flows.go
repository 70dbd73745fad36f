package proxy

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Flows deletes connection tracking entries beside the loop. It takes ownership of its arguments.
type Flows interface {
	// Request returns the number of the request. It does not block.
	Request(*conntrack.Desired) (number uint64)
	// Handled returns the number of the last request that is done.
	Handled() uint64
}

// flows requests a search for stale flows after each commit.
type flows struct {
	quiet
	to       Flows
	planner  *plan.Planner
	families []inet.Family
	// earlier holds the UDP frontends of an earlier process, until the first sync.
	earlier []model.Key
	// addresses lists the addresses that serve node ports in the current plan. served lists the addresses of the last successful sync.
	addresses, served [2][]netip.Addr
	// owners holds the namespaces of the frontends that Services had before the changes since the last sync.
	owners map[model.Key]string
	// owed has the last request for the flows to each deleted frontend. An entry leaves in settle, after its request is done.
	owed map[model.Key]uint64
}

func newFlows(c *Config, earlier []model.Key) *flows {
	return &flows{to: c.Flows, planner: c.Planner, families: c.Families, earlier: earlier, owners: map[model.Key]string{},
		owed: map[model.Key]uint64{}}
}

// Service records the owner of each frontend, which the Service may lose.
func (f *flows) Service(name types.NamespacedName, _ *model.Service) {
	for _, protocol := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		f.planner.FrontendsOf(name, protocol, func(k model.Key, _ bool) { f.owners[k] = name.Namespace })
	}
}

func (f *flows) Node(n *Node) { f.addresses = n.Addresses }

// patienceWithEarlier is the longest time that a start waits for the frontends of an earlier process. The kernel's work grows
// with the square of the number of frontends: some 10 ms for 10,000.
const patienceWithEarlier = time.Second

// readEarlier reads the UDP frontends in the tables of an earlier process. If a Service was deleted while no process ran, only
// these tables have its frontends. Flows to them belong to this program and are stale. Flows to any other unknown frontend may
// belong to another program.
func (p *Proxy) readEarlier(ctx context.Context) (earlier []model.Key) {
	if p.Earlier == nil {
		return nil
	}
	read := make(chan []model.Key, 1)
	go func() {
		keys, err := p.Earlier()
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the frontends of an earlier process; UDP flows to deleted frontends stay")
		}
		read <- keys
	}()
	select {
	case earlier = <-read:
	case <-ctx.Done():
	case <-time.After(patienceWithEarlier):
		klog.FromContext(ctx).Info("An earlier process has too many frontends to read; UDP flows to deleted frontends stay",
			"waited", patienceWithEarlier)
	}
	return earlier
}

// Synced requests a search after a successful sync. The search includes all changed frontends. If a new address serves node ports, it
// includes all node ports. After a time without rules, it includes all frontends, because a flow that began without rules is not
// translated.
func (f *flows) Synced(s *Sync) {
	if s.Err != nil {
		return
	}
	changed, owners := f.planner.TakeFlows(), f.owners
	f.owners = map[model.Key]string{}
	all := s.Result.Kind == apply.Full || s.First
	added := f.noteServed()
	if len(changed) == 0 && !all && !added {
		return
	}
	d := &conntrack.Desired{Urgent: all || added}
	if all {
		d.Expect(f.planner.Frontends())
	}
	var deleted []model.Key
	addKey := func(k model.Key) {
		flows, exists := f.planner.FlowPolicy(k)
		add(d, k, flows, exists)
		if !exists && k.Protocol == inet.UDP {
			deleted = append(deleted, k)
		}
	}
	for k := range changed {
		addKey(k)
		if port, exists := f.planner.PortOf(k); exists {
			d.For(port.Namespace)
		} else if namespace, known := owners[k]; known {
			d.For(namespace)
		}
	}
	if all || added {
		f.planner.EachFlowPolicy(func(k model.Key, flows plan.FlowPolicy, exists bool) {
			if all || !k.Addr.IsValid() {
				add(d, k, flows, exists)
			}
		})
	}
	for _, k := range f.earlier {
		addKey(k)
	}
	f.earlier = nil
	for _, family := range f.families {
		d.NodeAddresses(family, f.addresses[family])
	}
	request := f.to.Request(d)
	for _, k := range deleted {
		f.owed[k] = request
	}
}

// settle removes the deleted frontends from the plan to which no flows lead any more. It reports whether there were any.
func (f *flows) settle() bool {
	settled := f.settled()
	f.planner.FlowsDeleted(settled)
	for _, k := range settled {
		delete(f.owed, k)
	}
	return len(settled) > 0
}

// settled returns the deleted frontends whose flows have been deleted since the last call of settle.
func (f *flows) settled() (keys []model.Key) {
	if len(f.owed) == 0 {
		return nil
	}
	handled := f.to.Handled()
	for k, request := range f.owed {
		if request <= handled {
			keys = append(keys, k)
		}
	}
	return keys
}

// add adds the state of a frontend to a request.
func add(d *conntrack.Desired, k model.Key, flows plan.FlowPolicy, exists bool) {
	if !exists {
		d.Gone(k)
	} else {
		d.Frontend(k, flows.Endpoints)
	}
	if flows.Sources != nil {
		d.Restrict(k, flows.Sources)
	}
	if flows.BeforeNodePorts {
		d.PreferToNodePorts(k)
	}
}

// noteServed records the addresses that serve node ports now, and reports whether one of them is new. It ignores new link-local
// addresses: each new pod adds one to the node, and clients do not connect to node ports at these addresses.
func (f *flows) noteServed() (added bool) {
	for family, now := range f.addresses {
		if slices.Equal(now, f.served[family]) {
			continue
		}
		for _, a := range now {
			_, known := slices.BinarySearchFunc(f.served[family], a, netip.Addr.Compare)
			added = added || !known && !a.IsLinkLocalUnicast()
		}
		f.served[family] = now
	}
	return added
}
