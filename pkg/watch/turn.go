package watch

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

const (
	// nodesPerSecond is the number of nodes that list in a second, if all nodes start at once while rules serve.
	nodesPerSecond = 200
	// longestTurn limits the wait, because the rules do not follow changes meanwhile.
	longestTurn = 30 * time.Second
	// assumedNodes is the number of Nodes if the API server does not permit to list them.
	assumedNodes = 1000
)

// turn is the moment of the first lists of this process, if rules serve already.
type turn struct {
	mu  sync.Mutex
	set atomic.Pointer[moment]
}

// moment is a random moment of a time that begins with the choice and has a length.
type moment struct {
	at      time.Time
	longest time.Duration
}

// choose chooses the moment once. The time has a length in proportion to the number of Nodes.
func (t *turn) choose(ctx context.Context, nodes kubeapi.Reader[*corev1.NodeList]) (*moment, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.set.Load(); m != nil {
		return m, nil
	}
	n, err := countNodes(ctx, nodes)
	if err != nil {
		return nil, err
	}
	n = min(n, int64(longestTurn/time.Second)*nodesPerSecond)
	m := &moment{longest: time.Duration(n) * time.Second / nodesPerSecond}
	m.at = time.Now().Add(rand.N(m.longest))
	t.set.Store(m)
	klog.FromContext(ctx).V(1).Info("Rules of an earlier process serve; the first list waits for a random time",
		"wait", time.Until(m.at).Round(time.Millisecond), "longest", m.longest)
	return m, nil
}

// countNodes returns the number of all Nodes. The API server sends only one of them, and the number of the others.
func countNodes(ctx context.Context, nodes kubeapi.Reader[*corev1.NodeList]) (n int64, err error) {
	list, err := nodes.List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsForbidden(err) {
		return assumedNodes, nil
	}
	if err != nil {
		return 0, err
	}
	if list.RemainingItemCount != nil {
		n = *list.RemainingItemCount
	}
	return max(1, n+int64(len(list.Items))), nil
}

// awaitTurn waits before the first list if rules serve that are not old: many nodes may start at once. Without such
// rules, it does not wait.
func (i *Informers) awaitTurn(ctx context.Context) error {
	rejected := i.past.header != nil && i.cfg.serves()
	if !rejected && (i.cfg.Adopts == nil || !i.cfg.Adopts()) {
		return nil
	}
	m, err := i.turn.choose(ctx, i.cfg.Client.Nodes)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Until(m.at)):
	case <-ctx.Done():
	}
	return nil
}

// Turn returns the longest wait for the first list while it lasts, otherwise 0.
func (i *Informers) Turn() time.Duration {
	if m := i.turn.set.Load(); m != nil && time.Now().Before(m.at) {
		return m.longest
	}
	return 0
}
