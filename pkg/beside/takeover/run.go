package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Config holds the settings of a takeover.
type Config struct {
	NodeName string
	// Metrics and Health are this program's addresses. A running kube-proxy may answer there.
	Metrics, Health string
	// Excluded are the addresses of other programs' virtual servers (ipvs.excludeCIDRs).
	Excluded []netip.Prefix
	// Report receives a problem about a running kube-proxy. Count receives the number of objects of each kind, at
	// each check and after each removal.
	Report func(model.Problem)
	Count  func(Kind, int)
	// Found, if not nil, is called by the goroutine of [Takeover.Run] each time it finds a running kube-proxy.
	Found func()
}

// Takeover removes the objects that kube-proxy left, and reports a kube-proxy that runs beside this program. After a
// complete removal, it removes nothing more.
type Takeover struct {
	Config
	runner *beside.Runner
	synced chan struct{}
	once   sync.Once
	// rival is the page at which a kube-proxy answered at the last check.
	rival string
	// tried is true after an attempt to remove, and left has the remaining objects after this attempt. taken is true
	// if the takeover removes nothing more: the removal is complete, or another program has added objects after an
	// attempt.
	tried, taken bool
	left         Leftovers
	// appeared is true if new objects were found after taken was set.
	appeared bool
	note     *notes
}

// New returns a takeover. [Takeover.Run] starts it.
func New(c Config) *Takeover {
	t := &Takeover{Config: c, synced: make(chan struct{}), left: Leftovers{}}
	t.runner = beside.NewRunner(beside.Runner{
		Work: t.work, Failed: "Failed to read or remove rules of kube-proxy, will retry",
	})
	return t
}

// lookEvery is the time between two checks. A check that finds no objects takes a millisecond.
const lookEvery = 10 * time.Second

// Rival looks for a running kube-proxy, see [FindRival]. Call it before you remove objects of kube-proxy.
func (t *Takeover) Rival(ctx context.Context) Rival { return FindRival(ctx, t.Metrics, t.Health) }

// Synced records that the program's tables are in the kernel, so that kube-proxy's objects can be removed. It may be
// called repeatedly and concurrently.
func (t *Takeover) Synced() {
	t.once.Do(func() {
		close(t.synced)
		t.runner.Wake()
	})
}

// Run checks immediately, again after the first call of Synced, and periodically until the context ends.
func (t *Takeover) Run(ctx context.Context) {
	t.note = newNotes(klog.FromContext(ctx))
	t.runner.Run(ctx)
}

func (t *Takeover) work(ctx context.Context) (beside.Pause, error) {
	start := time.Now()
	err := t.look(ctx)
	// A check may take long on a node with very many objects. Checks take at most a twentieth of the time.
	const share = 20
	return beside.Pause{Most: max(lookEvery, share*time.Since(start))}, err
}

// look makes one check. It removes nothing before Synced is called, and nothing while a kube-proxy runs or may run.
func (t *Takeover) look(ctx context.Context) error {
	var unknown error
	if !t.taken {
		rival := t.Rival(ctx)
		if unknown = rival.Unknown; unknown == nil {
			t.noteRival(rival.Page)
		}
	}
	found, err := t.count()
	err = errors.Join(unknown, err)
	select {
	case <-t.synced:
	default:
		return err
	}
	if unknown != nil {
		return err // a kube-proxy that answers slowly must keep its rules
	}
	if t.rival != "" {
		t.tried = false
		return err
	}
	// A failed or incomplete removal is retried, unless new objects have appeared: a kube-proxy has been started.
	t.taken = t.taken || t.tried && t.appearedIn(found).any()
	if t.taken {
		t.noteAppeared(found)
		return err
	}
	return errors.Join(err, t.take())
}

// take removes kube-proxy's objects, except those that connections of ipvs need.
func (t *Takeover) take() (err error) {
	busy, failed := remove(t.note, t.Excluded, true)
	t.tried, t.taken = true, failed == nil && busy == 0
	t.left, err = t.count()
	return errors.Join(failed, err)
}

// count returns the number of objects of each kind, and passes it to Count.
func (t *Takeover) count() (Leftovers, error) {
	l, err := Look(t.Excluded)
	for _, k := range Kinds {
		if n, known := l[k]; known {
			t.Count(k, n)
		}
	}
	return l, err
}

// noteRival reports a kube-proxy once after each of its starts.
func (t *Takeover) noteRival(rival string) {
	switch {
	case rival != "" && t.rival == "":
		if t.Found != nil {
			t.Found()
		}
		t.report(fmt.Sprintf("a kube-proxy is running on node %s beside kube-nftproxy (%s answers)", t.NodeName, rival),
			"its rules stay until it stops, and are then removed", "")
	case rival == "" && t.rival != "":
		t.note.Info("The kube-proxy on this node has stopped", "answered", t.rival)
	}
	t.rival = rival
}

// appearedIn returns the number of new objects of each kind: those found now, less those left by the last attempt.
func (t *Takeover) appearedIn(found Leftovers) Leftovers {
	appeared := Leftovers{}
	for k, n := range found {
		if n > t.left[k] {
			appeared[k] = n - t.left[k]
		}
	}
	return appeared
}

// noteAppeared reports objects that appeared after the removal, once. It reports again if they disappear and other
// ones appear.
func (t *Takeover) noteAppeared(found Leftovers) {
	appeared := t.appearedIn(found)
	if appeared.any() && !t.appeared {
		t.report(fmt.Sprintf("rules of kube-proxy have appeared on node %s (%v): a kube-proxy was started beside "+
			"kube-nftproxy", t.NodeName, appeared),
			"its rules stay", ". Then delete the pod of kube-nftproxy on this node: its next start removes the rules")
	}
	t.appeared = appeared.any()
}

// report reports a running kube-proxy. then is appended to the remedy.
func (t *Takeover) report(reason, impact, then string) {
	fix, _ := Remedy(t.NodeName)
	t.Report(model.Problem{
		Kind: "Node", Name: types.NamespacedName{Name: t.NodeName}, Field: "kube-proxy", Reason: reason, Impact: impact,
		Fix:   fix + then,
		Event: "KubeProxyRunning", Action: "TakeOver",
	})
}
