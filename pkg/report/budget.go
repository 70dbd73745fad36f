package report

import (
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

const (
	// window is the time in which at most so many problems of one object, and of all objects together, are reported.
	window    = 10 * time.Minute
	perObject = 20
	perNode   = 500
	// longestText is how much of a reason is reported, in bytes: an Event has room for 1,024.
	longestText = 800
)

// budget bounds how many problems are reported. A flood of objects that cannot be served must not fill the log, nor the API server.
type budget struct {
	mu      sync.Mutex
	ends    time.Time
	objects map[object]int
	all     int
	// suppressed is how many problems of this window were not reported.
	suppressed int
}

type object struct{ kind, namespace, name string }

// verdict is what to do with a problem.
type verdict int

const (
	reported verdict = iota
	// lastOne is the first problem that is not reported: that is said once for each object, and once for the node.
	lastOne
	suppressed
)

// take returns what to do with a problem, and how many were suppressed in a window that is over now.
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
