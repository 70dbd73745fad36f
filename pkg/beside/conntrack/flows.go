package conntrack

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// FlowsConfig has the parts of [Flows].
type FlowsConfig struct {
	To *Reconciler
	// Planned are the flows to the planned frontends.
	Planned plan.Flows
	// Earlier holds the UDP frontends of an earlier process, see [ReadEarlier].
	Earlier []model.Key
	// Change makes the next sync call a function that changes the plan.
	Change func(func())
}

// Flows is a listener that requests a search for stale flows after each commit.
type Flows struct {
	FlowsConfig
	// addresses lists the addresses that serve node ports in the current plan. served lists the addresses of the last
	// successful sync.
	addresses, served [2][]netip.Addr
	// reread is true if the node was read again since the last successful sync.
	reread bool
	// owed has the last request for the flows to each deleted frontend. An entry leaves after its request is done.
	owed map[model.Key]uint64
}

// NewFlows returns a listener.
func NewFlows(c FlowsConfig) *Flows {
	return &Flows{FlowsConfig: c, owed: map[model.Key]uint64{}}
}

// Listener returns the functions that the loop calls.
func (f *Flows) Listener() beside.Listener {
	return beside.Listener{Node: f.Node, Synced: f.Synced, Serve: f.Serve}
}

// Node records the addresses that serve node ports.
func (f *Flows) Node(n *beside.Node) { f.addresses, f.reread = n.Addresses, true }

// patienceWithEarlier is the longest time that a start waits for the frontends of an earlier process. The kernel's work
// grows with the square of the number of frontends: some 10 ms for 10,000.
const patienceWithEarlier = time.Second

// ReadEarlier calls a function that reads the UDP frontends in the tables of an earlier process, and returns these
// frontends. If the function takes longer than a second, it returns none. If a Service was deleted while no process
// ran, only these tables have its frontends. Flows to them belong to this program and are stale. Flows to any other
// unknown frontend may belong to another program.
func ReadEarlier(ctx context.Context, from func() ([]model.Key, error)) (earlier []model.Key) {
	const stay = "UDP flows to deleted frontends stay"
	read := make(chan []model.Key, 1)
	go func() {
		keys, err := from()
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the frontends of an earlier process; "+stay)
		}
		read <- keys
	}()
	select {
	case earlier = <-read:
	case <-ctx.Done():
	case <-time.After(patienceWithEarlier):
		klog.FromContext(ctx).Info("An earlier process has too many frontends to read; "+stay, "waited",
			patienceWithEarlier)
	}
	return earlier
}

// Synced requests a search after a successful sync. The search includes all changed frontends. If a new address
// serves node ports, it includes all node ports. After a time without rules, it includes all frontends, because a
// flow that began without rules is not translated.
func (f *Flows) Synced(s *beside.Sync) {
	if s.Err != nil {
		return
	}
	changed := f.Planned.Take()
	all := s.Result.Kind == apply.Full || s.First
	added := f.reread && f.noteServed()
	f.reread = false
	if len(changed) == 0 && !all && !added {
		return
	}
	d := &Desired{Urgent: all || added, Nodes: f.addresses, Networks: f.Planned.NodeNetworks}
	var deleted []model.Key
	add := func(k model.Key) {
		if flows, exists := f.Planned.Of(k); exists {
			d.Frontend(k, flows)
			return
		}
		if d.Gone(k); k.Protocol == inet.UDP {
			deleted = append(deleted, k)
		}
	}
	for k, namespace := range changed {
		if add(k); namespace != "" { // only the namespace pays whose Service changed, not another owner of a frontend
			d.For(namespace)
		}
	}
	if all || added {
		nodePorts := map[model.Key]string{}
		f.Planned.Each(func(k model.Key, flows plan.FlowPolicy, _ bool) {
			if all || !k.Addr.IsValid() {
				d.Frontend(k, flows)
			}
			if !k.Addr.IsValid() {
				nodePorts[k] = ""
			}
		})
		if !all {
			f.Planned.SinglePortsBeside(nodePorts, add)
		}
	}
	for _, k := range f.Earlier {
		add(k)
	}
	f.Earlier = nil
	request := f.To.Request(d)
	for _, k := range deleted {
		f.owed[k] = request
	}
}

// Serve removes the deleted frontends from the plan to which no flows lead any more.
func (f *Flows) Serve(on bool) {
	if !on || len(f.owed) == 0 {
		return
	}
	var settled []model.Key
	handled := f.To.Handled()
	for k, request := range f.owed {
		if request <= handled {
			settled = append(settled, k)
			delete(f.owed, k)
		}
	}
	if len(settled) > 0 {
		f.Change(func() { f.Planned.Deleted(settled) })
	}
}

// noteServed records the addresses that serve node ports now, and reports whether one of them is new. It ignores new
// link-local addresses: each new pod adds one to the node, and clients do not connect to node ports at these
// addresses.
func (f *Flows) noteServed() (added bool) {
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
