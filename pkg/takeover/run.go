package takeover

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Config is what a takeover needs.
type Config struct {
	NodeName string
	// Metrics and Health are the addresses on which we are to serve; a kube-proxy that runs may answer there.
	Metrics, Health string
	// Excluded are the addresses of virtual servers that aren't kube-proxy's.
	Excluded []netip.Prefix
	// Report is told of a kube-proxy that runs; Count of how much of each kind is left, at every look.
	Report func(model.Problem)
	Count  func(Kind, int)
	// Found, unless nil, is called by the goroutine of [Takeover.Run] each time that it finds a kube-proxy that runs.
	Found func()
}

// Takeover removes what kube-proxy left, once, and tells when a kube-proxy works beside us.
type Takeover struct {
	Config
	synced chan struct{}
	once   sync.Once
	// rival is where a kube-proxy answered at the last look.
	rival string
	// tried says that something has been removed, and left is what was left then; taken that nothing more is to be removed.
	tried, taken bool
	left         Leftovers
	// appeared says that something has come back since, failed is the last failure that was logged.
	appeared bool
	failed   string
	note     *notes
}

// New returns a takeover that has done nothing yet.
func New(c Config) *Takeover {
	return &Takeover{Config: c, synced: make(chan struct{}), left: Leftovers{}}
}

// lookEvery is the time between two looks. One takes a millisecond where there is nothing.
const lookEvery = 10 * time.Second

// Rival reports whether a kube-proxy runs, or may run: nothing of it is to be touched then. It is to be asked before anything is removed,
// and takes a second at most.
func (t *Takeover) Rival(ctx context.Context) bool {
	page, unknown := findRival(ctx, t.Metrics, t.Health)
	return page != "" || unknown != nil
}

// Synced says that our tables are in place, so that kube-proxy's may go. It may be called more than once, by any goroutine.
func (t *Takeover) Synced() { t.once.Do(func() { close(t.synced) }) }

// Run looks at once, as soon as our tables are in place, and then every so often, until the context ends.
func (t *Takeover) Run(ctx context.Context) {
	t.note = newNotes(klog.FromContext(ctx))
	synced := t.synced
	for ctx.Err() == nil {
		start := time.Now()
		t.look(ctx)
		// A node may have very much to look at.
		const share = 20
		timer := time.NewTimer(max(lookEvery, share*time.Since(start)))
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-synced:
			synced = nil
		}
		timer.Stop()
	}
}

// look does what is to be done at the time: nothing but a report while a kube-proxy runs, or before our tables are in place.
func (t *Takeover) look(ctx context.Context) {
	var unknown error
	if !t.taken {
		var rival string
		if rival, unknown = findRival(ctx, t.Metrics, t.Health); unknown == nil {
			t.noteRival(rival)
		}
		t.noteFailed(unknown)
	}
	found := t.count()
	select {
	case <-t.synced:
	default:
		return
	}
	if unknown != nil {
		return // one that runs must not lose its rules because it is slow to answer
	}
	if t.rival != "" {
		t.tried = false
		return
	}
	// What couldn't be removed is tried again, but with somebody who makes it anew nobody fights.
	t.taken = t.taken || t.tried && t.appearedIn(found).any()
	if t.taken {
		t.noteAppeared(found)
		return
	}
	t.take()
}

// take removes what is there.
func (t *Takeover) take() {
	busy, err := remove(t.note, t.Excluded, true)
	t.noteFailed(err)
	t.tried, t.taken, t.left = true, err == nil && busy == 0, t.count()
}

// count looks at what is left.
func (t *Takeover) count() Leftovers {
	l, err := Look(t.Excluded)
	t.noteFailed(err)
	for _, k := range Kinds {
		if n, known := l[k]; known {
			t.Count(k, n)
		}
	}
	return l
}

// noteFailed logs a failure, once for as long as it stays the same.
func (t *Takeover) noteFailed(err error) {
	if err == nil {
		return
	}
	if text := err.Error(); text != t.failed {
		t.failed = text
		t.note.Error(err, "Failed to read or remove rules of kube-proxy, will retry", "interval", lookEvery)
	}
}

// noteRival reports a kube-proxy that runs, once each time.
func (t *Takeover) noteRival(rival string) {
	switch {
	case rival != "" && t.rival == "":
		if t.Found != nil {
			t.Found()
		}
		t.report(fmt.Sprintf("a kube-proxy is running on this node beside kube-nftproxy (%s answers). Its rules stay until it stops, and are then "+
			"removed. Stop it: kubectl -n kube-system delete daemonset kube-proxy", rival))
	case rival == "" && t.rival != "":
		t.note.Info("The kube-proxy on this node has stopped", "answered", t.rival)
	}
	t.rival = rival
}

// appearedIn returns what there is more than was left.
func (t *Takeover) appearedIn(found Leftovers) Leftovers {
	appeared := Leftovers{}
	for k, n := range found {
		if n > t.left[k] {
			appeared[k] = n - t.left[k]
		}
	}
	return appeared
}

// noteAppeared reports what has appeared after all had been removed, once each time.
func (t *Takeover) noteAppeared(found Leftovers) {
	appeared := t.appearedIn(found)
	if appeared.any() && !t.appeared {
		t.report(fmt.Sprintf("rules of kube-proxy have appeared (%v): a kube-proxy was started on this node beside kube-nftproxy. Its rules "+
			"stay. Stop it: kubectl -n kube-system delete daemonset kube-proxy. Then restart kube-nftproxy, which removes "+
			"the rules", map[Kind]int(appeared)))
	}
	t.appeared = appeared.any()
}

func (t *Takeover) report(reason string) {
	t.Report(model.Problem{
		Kind: "Node", Name: types.NamespacedName{Name: t.NodeName}, Field: "kube-proxy", Reason: reason,
		Event: "KubeProxyRunning", Action: "TakeOver",
	})
}
