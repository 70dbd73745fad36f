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

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

const (
	// period is the time between two searches if nothing has changed: processes come and go.
	period = time.Minute
	// settle is how long a search waits for more changes, least the time from one search to the next.
	settle = time.Second
	least  = 5 * time.Second
	// patience is how long a socket has to be there that may have its port by chance: it lies in the ephemeral range, and many
	// who only ask somebody a question have one for a moment.
	patience = period / 2
	// forget is how long a collision that has gone isn't told again: a process that starts over and over is one message.
	forget = time.Hour
	// mostServices is the number of Services that are told one by one that their node ports are in the ephemeral range. With
	// more it is plainly the node that is to be mended, and every node of a cluster may be in the same state.
	mostServices = 10
	// mostTold is the number of Services that are told of listeners after one search; the others are told after the next ones.
	mostTold = 20
)

// Metrics counts collisions and searches.
type Metrics interface {
	// NodePortCollisions sets how many node ports collide.
	NodePortCollisions(cause string, n int)
	// NodePortsSearched is called after each search.
	NodePortsSearched(err error)
}

// Config is what a watcher needs.
type Config struct {
	NodeName string
	// Listening lists the sockets that listen on ports of a range; Own the inodes of those of this process.
	Listening func(Range) ([]Socket, error)
	Own       func() (map[uint32]struct{}, error)
	Ephemeral func() (Ephemeral, error)
	// Report is told of each collision once.
	Report  func(model.Problem)
	Metrics Metrics
}

// Watcher looks for collisions when the node ports or their addresses have changed, and every minute, beside the goroutine that
// syncs.
type Watcher struct {
	Config
	wake chan struct{}

	mu    sync.Mutex
	ports map[types.NamespacedName][]model.Key
	addrs [2][]netip.Addr

	// The rest belongs to Run. told are the collisions that were told, with the time when they were last seen.
	told map[notice]time.Time
	// since is when sockets were first seen that may have their ports by chance.
	since map[uint64]time.Time
	// failure is the error that was logged last.
	failure string
}

// notice is what is told once; the one about the whole node has neither Service nor port.
type notice struct {
	cause   Cause
	service types.NamespacedName
	port    port
}

// New returns a watcher that does nothing before [Watcher.Run].
func New(c Config) *Watcher {
	return &Watcher{
		Config: c, wake: make(chan struct{}, 1), ports: map[types.NamespacedName][]model.Key{},
		told: map[notice]time.Time{}, since: map[uint64]time.Time{},
	}
}

// Service sets the node ports of a Service; none removes it. It never waits for a search, and takes over the list.
func (w *Watcher) Service(name types.NamespacedName, ports []model.Key) {
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
	w.changed()
}

// Addresses sets the addresses of a family on which node ports are served; they have to be sorted. It never waits for a search, and
// the list must not be changed afterwards.
func (w *Watcher) Addresses(f model.Family, addrs []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(w.addrs[f], addrs) {
		return
	}
	w.addrs[f] = addrs
	if len(w.ports) > 0 {
		w.changed()
	}
}

// changed asks for a search.
func (w *Watcher) changed() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run searches until the context ends. Errors are logged and counted; no failure stops anything.
func (w *Watcher) Run(ctx context.Context) {
	due := time.NewTimer(period)
	defer due.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		case <-w.wake:
			if !sleep(ctx, max(settle, least-time.Since(last))) {
				return
			}
		}
		err := w.search(ctx)
		w.Metrics.NodePortsSearched(err)
		w.log(ctx, err)
		last = time.Now()
		due.Reset(period)
	}
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// take returns what is served now, and the ports between which all node ports lie. What has asked for a search so far is settled.
func (w *Watcher) take() (*served, Range) {
	select {
	case <-w.wake:
	default:
	}
	return w.served()
}

// search looks once for collisions of both causes. One that can't be looked for leaves what was found of it, and doesn't stop
// the other.
func (w *Watcher) search(ctx context.Context) error {
	now := time.Now()
	s, ports := w.take()
	if len(s.services) == 0 {
		w.Metrics.NodePortCollisions(string(Listener), 0)
		w.Metrics.NodePortCollisions(string(EphemeralRange), 0)
		clear(w.since)
		w.forget(now)
		return nil
	}
	e, rangeErr := w.Ephemeral()
	listeners, socketErr := w.listeners(s, ports, e, now)
	if socketErr == nil {
		w.Metrics.NodePortCollisions(string(Listener), countPorts(listeners))
		w.tellListeners(listeners, now)
	}
	if rangeErr == nil {
		overlap := s.ephemeral(e)
		w.Metrics.NodePortCollisions(string(EphemeralRange), countPorts(overlap))
		w.tellEphemeral(e, overlap, now)
	}
	w.forget(now)
	klog.FromContext(ctx).V(4).Info("Searched for collisions of node ports", "frontends", len(s.services),
		"colliding", len(listeners), "took", time.Since(now))
	return errors.Join(rangeErr, socketErr)
}

// listeners finds the sockets of others that listen on node ports.
func (w *Watcher) listeners(s *served, ports Range, e Ephemeral, now time.Time) ([]collision, error) {
	sockets, err := w.Listening(ports)
	if err != nil {
		return nil, err
	}
	var own map[uint32]struct{}
	since := map[uint64]time.Time{}
	found := s.listeners(sockets, func(socket *Socket) bool {
		if own == nil && err == nil {
			own, err = w.Own()
		}
		if _, is := own[socket.Inode]; is {
			return false
		}
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
	w.since = since
	return found, err
}

// tellListeners tells each Service with a collision that is new of all that it has, but no more than some at once: a process that
// listens on every port is one process.
func (w *Watcher) tellListeners(list []collision, now time.Time) {
	told := 0
	for _, of := range byService(list) {
		if told == mostTold && !w.known(Listener, of) {
			continue
		}
		if w.news(Listener, of, now) {
			w.Report(listenerProblem(w.NodeName, of))
			told++
		}
	}
}

// known reports whether all of the collisions have been told.
func (w *Watcher) known(cause Cause, list []collision) bool {
	return !slices.ContainsFunc(list, func(c collision) bool {
		_, told := w.told[notice{cause, c.service, c.port}]
		return !told
	})
}

func (w *Watcher) tellEphemeral(e Ephemeral, list []collision, now time.Time) {
	if len(list) == 0 {
		return
	}
	if w.news(EphemeralRange, []collision{{}}, now) {
		w.Report(nodeProblem(w.NodeName, e, list))
	}
	services := byService(list)
	for _, of := range services {
		if w.news(EphemeralRange, of, now) && len(services) <= mostServices {
			w.Report(ephemeralProblem(w.NodeName, e, of))
		}
	}
}

// news reports whether any of the collisions has not been told.
func (w *Watcher) news(cause Cause, list []collision, now time.Time) (fresh bool) {
	for _, c := range list {
		n := notice{cause, c.service, c.port}
		_, known := w.told[n]
		fresh = fresh || !known
		w.told[n] = now
	}
	return fresh
}

// forget drops what hasn't been seen for a long time, or is about a Service without node ports: it has gone, and one that comes
// under its name is another.
func (w *Watcher) forget(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.told, func(n notice, seen time.Time) bool {
		return now.Sub(seen) >= forget || n.service.Name != "" && w.ports[n.service] == nil
	})
}

// log logs an error when it is not the one before, and the end of a row of them.
func (w *Watcher) log(ctx context.Context, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case err == nil:
		if w.failure != "" {
			logger.Info("Searching for collisions of node ports succeeds again")
		}
		w.failure = ""
	case err.Error() != w.failure:
		w.failure = err.Error()
		logger.Error(err, "Failed to search for collisions of node ports, will retry", "retryingTime", period)
	}
}
