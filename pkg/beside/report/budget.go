package report

import (
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

const (
	// window is the period for which the numbers of reported problems are limited, for one object and in all.
	window    = 10 * time.Minute
	perObject = 20
	perNode   = 500
	// longestText is the longest reported reason, in bytes: an Event has room for 1,024.
	longestText = 800
)

// budget limits the number of reported problems. A flood of invalid objects must fill neither the log nor the API server.
type budget struct {
	mu      sync.Mutex
	ends    time.Time
	objects map[object]int
	all     int
	// suppressed is the number of unreported problems in this window.
	suppressed int
}

type object struct{ kind, namespace, name string }

// verdict is the decision about a problem.
type verdict int

const (
	reported verdict = iota
	// lastOne is the first unreported problem: the limit is reported once for each object, and once for the node.
	lastOne
	suppressed
)

// take returns the decision about a problem, and the number of suppressed problems if a window has just ended.
func (b *budget) take(p model.Problem, now time.Time) (v verdict, before int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.After(b.ends) {
		before = b.suppressed
		b.ends, b.objects, b.all, b.suppressed = now.Add(window), map[object]int{}, 0, 0
	}
	if b.all > perNode {
		b.suppressed++
		return suppressed, before
	}
	o := object{p.Kind, p.Name.Namespace, p.Name.Name}
	switch n := b.objects[o]; {
	case n > perObject:
		b.suppressed++
		return suppressed, before
	case n == perObject, b.all == perNode:
		v = lastOne
		b.suppressed++
	}
	b.objects[o]++
	b.all++
	return v, before
}

// short returns the beginning of a reason.
func short(text string) string {
	if len(text) > longestText {
		return text[:longestText] + "…"
	}
	return text
}
