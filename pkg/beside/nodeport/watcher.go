package nodeport

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

const (
	// period is the time between two searches if no node port changes: processes may start or exit.
	period = time.Minute
	// settle is the delay of a search after a change, to collect more changes. least is the minimum time between two
	// searches.
	settle = time.Second
	least  = 5 * time.Second
	// patience is the minimum age of a socket in the ephemeral range that counts as a listener. The kernel may have
	// assigned its port: many clients have such a socket for a moment.
	patience = period / 2
	// forget is the time without a collision after which it is reported again. So a process in a crash loop causes
	// one message.
	forget = time.Hour
	// mostServices is the largest number of Services with node ports in the ephemeral range that are reported one by
	// one. If there are more, only the node is reported: every node of a cluster may have the same range.
	mostServices = 10
	// mostReported is the number of Services whose listeners are reported after one search. The next searches report
	// the rest.
	mostReported = 20
)

// Metrics counts collisions and searches.
type Metrics interface {
	// NodePortCollisions sets the number of colliding node ports.
	NodePortCollisions(cause string, n int)
	// NodePortsSearched is called after each search.
	NodePortsSearched(err error)
}

// Config holds the parts and settings of a watcher.
type Config struct {
	NodeName string
	// Families are the families whose node ports are served.
	Families []inet.Family
	// Listening returns the sockets that listen on ports of a range, Own the inodes of this process's sockets: a
	// Service with the same node port takes the packets of a health check, of /healthz or of /metrics.
	Listening func(Range) ([]Socket, error)
	Own       func() (map[uint32]struct{}, error)
	Ephemeral func() (Ephemeral, error)
	// Report receives each collision once. Withdraw, if not nil, receives the same problem of a Service whose node
	// ports no longer have listeners.
	Report, Withdraw func(model.Problem)
	Metrics          Metrics
}

// Watcher is a listener that searches for collisions when node ports or their addresses change, and every minute,
// beside the goroutine that syncs.
type Watcher struct {
	Config
	runner *beside.Runner

	mu    sync.Mutex
	ports map[types.NamespacedName][]model.Key
	addrs [2][]netip.Addr

	// Only Run uses the fields below. reported has the reported collisions, and the time at which each was last seen.
	reported map[notice]time.Time
	// present has the last reported problem about listeners of each Service that still has them.
	present map[types.NamespacedName]model.Problem
	// since has the time at which each socket in the ephemeral range was first seen, by its cookie.
	since map[uint64]time.Time
}

// notice identifies a reported collision. The notice about the whole node has neither Service nor port.
type notice struct {
	cause   Cause
	service types.NamespacedName
	port    port
}

// New returns a watcher. [Watcher.Run] starts it.
func New(c Config) *Watcher {
	w := &Watcher{
		Config: c, ports: map[types.NamespacedName][]model.Key{},
		reported: map[notice]time.Time{}, present: map[types.NamespacedName]model.Problem{},
		since: map[uint64]time.Time{},
	}
	w.runner = beside.NewRunner(beside.Runner{
		Work: w.work, Failed: "Failed to search for collisions of node ports, will retry",
		First: beside.Pause{Most: period}, Settle: settle,
	})
	return w
}

// Listener returns the functions that the loop calls.
func (w *Watcher) Listener() beside.Listener {
	return beside.Listener{Of: beside.NodePorts, Service: w.Service, Node: w.Node}
}

// Service sets the node ports of a Service.
func (w *Watcher) Service(name types.NamespacedName, s *model.Service) {
	var ports []model.Key
	if s != nil {
		for _, port := range s.Ports {
			if !slices.Contains(w.Families, port.Family) {
				continue
			}
			for i := range port.Frontends {
				if f := &port.Frontends[i]; !f.Addr.IsValid() {
					ports = append(ports, f.Key)
				}
			}
		}
	}
	w.set(name, ports)
}

// Node sets the addresses that serve node ports.
func (w *Watcher) Node(n *beside.Node) {
	for _, f := range w.Families {
		w.setAddresses(f, n.Addresses[f])
	}
}

// set sets the node ports of a Service; an empty list removes the Service. It takes ownership of the list.
func (w *Watcher) set(name types.NamespacedName, ports []model.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(w.ports[name], ports) {
		return
	}
	if len(ports) == 0 {
		delete(w.ports, name)
	} else {
		w.ports[name] = ports
	}
	w.runner.Wake()
}

// setAddresses sets the addresses of a family that serve node ports. They must be sorted and must not be changed.
func (w *Watcher) setAddresses(f inet.Family, addrs []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(w.addrs[f], addrs) {
		return
	}
	w.addrs[f] = addrs
	if len(w.ports) > 0 {
		w.runner.Wake()
	}
}

// Run searches until the context ends. It logs and counts errors, and continues.
func (w *Watcher) Run(ctx context.Context) { w.runner.Run(ctx) }

func (w *Watcher) work(ctx context.Context) (beside.Pause, error) {
	err := w.search(ctx)
	w.Metrics.NodePortsSearched(err)
	return beside.Pause{Least: least, Most: period}, err
}

// search searches once for both causes. If the search for one cause fails, its previous results stay, and the other
// one continues.
func (w *Watcher) search(ctx context.Context) error {
	now := time.Now()
	s, ports := w.served()
	if len(s.services) == 0 {
		w.Metrics.NodePortCollisions(string(Listener), 0)
		w.Metrics.NodePortCollisions(string(EphemeralRange), 0)
		clear(w.since)
		w.withdraw(nil)
		w.forget(now)
		return nil
	}
	e, rangeErr := w.Ephemeral()
	since := map[uint64]time.Time{}
	listeners, socketErr := w.listeners(s, ports, func(socket *Socket) bool {
		if !e.Contains(socket.Local.Port()) {
			return true
		}
		first, seen := w.since[socket.Cookie]
		if !seen {
			first = now
		}
		since[socket.Cookie] = first
		return now.Sub(first) >= patience
	})
	if socketErr == nil {
		w.since = since
		w.Metrics.NodePortCollisions(string(Listener), countPorts(listeners))
		w.reportListeners(listeners, now)
	}
	if rangeErr == nil {
		overlap := s.ephemeral(e)
		w.Metrics.NodePortCollisions(string(EphemeralRange), countPorts(overlap))
		w.reportEphemeral(e, overlap, now)
	}
	w.forget(now)
	klog.FromContext(ctx).V(4).Info("Searched for collisions of node ports", "frontends", len(s.services),
		"colliding", len(listeners), "took", time.Since(now))
	return errors.Join(rangeErr, socketErr)
}

// listeners returns the collisions with sockets of this process, and with those of other processes that count.
func (w *Watcher) listeners(s *served, ports Range, counts func(*Socket) bool) ([]collision, error) {
	sockets, err := w.Listening(ports)
	if err != nil {
		return nil, err
	}
	var own map[uint32]struct{}
	found := s.listeners(sockets, func(socket *Socket) (ok, isOwn bool) {
		if own == nil && err == nil {
			own, err = w.Own()
		}
		_, isOwn = own[socket.Inode]
		return isOwn || counts(socket), isOwn
	})
	return found, err
}

// reportListeners reports each Service with a new collision, with all of its collisions. It reports at most
// mostReported Services: a single process may listen on every node port.
func (w *Watcher) reportListeners(list []collision, now time.Time) {
	reported, services := 0, byService(list)
	w.withdraw(services)
	for _, of := range services {
		if reported == mostReported {
			break
		}
		if w.record(Listener, of, now) {
			problem := listenerProblem(w.NodeName, of)
			w.present[of[0].service] = problem
			w.Report(problem)
			reported++
		}
	}
}

// withdraw withdraws the problems of Services that are not in the list.
func (w *Watcher) withdraw(services [][]collision) {
	still := make(map[types.NamespacedName]struct{}, len(services))
	for _, of := range services {
		still[of[0].service] = struct{}{}
	}
	for name, problem := range w.present {
		if _, found := still[name]; !found {
			delete(w.present, name)
			if w.Withdraw != nil {
				w.Withdraw(problem)
			}
		}
	}
}

// reportEphemeral reports node ports in the ephemeral range: on the node and, if there are not too many, on each
// Service.
func (w *Watcher) reportEphemeral(e Ephemeral, list []collision, now time.Time) {
	if len(list) == 0 {
		return
	}
	if w.record(EphemeralRange, []collision{{}}, now) {
		w.Report(nodeProblem(w.NodeName, e, list))
	}
	services := byService(list)
	for _, of := range services {
		if w.record(EphemeralRange, of, now) && len(services) <= mostServices {
			w.Report(ephemeralProblem(w.NodeName, e, of))
		}
	}
}

// record records collisions as reported and returns whether any of them is new.
func (w *Watcher) record(cause Cause, list []collision, now time.Time) (fresh bool) {
	for _, c := range list {
		n := notice{cause, c.service, c.port}
		_, known := w.reported[n]
		fresh = fresh || !known
		w.reported[n] = now
	}
	return fresh
}

// forget removes collisions that were not seen for a long time, and collisions of deleted Services: a new Service
// with the same name is another Service.
func (w *Watcher) forget(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.reported, func(n notice, seen time.Time) bool {
		return now.Sub(seen) >= forget || n.service.Name != "" && w.ports[n.service] == nil
	})
}
