package proxy

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// builder builds changed Services from their objects.
type builder struct {
	source  Source
	options model.Options
	// node is the node for which Services are built.
	node *model.Node
	// starts holds the starting endpoints of Services with slow start, and steps the times of their next steps.
	starts map[types.NamespacedName]*model.Starts
	steps  steps
}

// build builds a Service, and records its starting endpoints. now is the zero time before the first sync.
func (b *builder) build(name types.NamespacedName, now time.Time) *model.Service {
	options := b.options
	options.Starts, options.Now = b.starts[name], &now
	s := model.Build(b.source.Get(name), *b.node, options)
	switch {
	case s != nil && s.Starts != nil:
		b.starts[name] = s.Starts
		b.steps.note(name, s.Starts.Next())
	case b.starts[name] != nil:
		delete(b.starts, name)
		delete(b.steps.next, name)
	}
	return s
}

// steps schedules slow start: the share of a starting endpoint rises in steps. All Services have their next steps at
// the same time, so that one batch has the steps of many Services. These times are at least stepEvery apart: a
// Service has at most one step in this interval, regardless of the number of its endpoints.
type steps struct {
	next map[types.NamespacedName]time.Time
	// at is the time of the next steps; zero if no endpoint is starting. last is the time of the previous ones.
	at, last time.Time
}

const stepEvery = time.Second

// note records the time of the next step of a Service; zero if it has none.
func (s *steps) note(name types.NamespacedName, next time.Time) {
	if next.IsZero() {
		delete(s.next, name)
		return
	}
	if s.next == nil {
		s.next = map[types.NamespacedName]time.Time{}
	}
	s.next[name] = next
	s.wakeAt(next)
}

func (s *steps) wakeAt(next time.Time) {
	if soonest := s.last.Add(stepEvery); next.Before(soonest) {
		next = soonest
	}
	if s.at.IsZero() || next.Before(s.at) {
		s.at = next
	}
}

// due returns the Services with a step that is due, sorted. The caller has to plan them.
func (s *steps) due(now time.Time) (names []types.NamespacedName) {
	s.at, s.last = time.Time{}, now
	for name, next := range s.next {
		if next.After(now) {
			s.wakeAt(next)
		} else {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.CompareNames)
	return names
}

// Starts returns the starting endpoints of all planned Services that have any.
func (p *Proxy) Starts(ctx context.Context) (map[types.NamespacedName]*model.Starts, error) {
	return ask(ctx, p, func() map[types.NamespacedName]*model.Starts {
		starts := map[types.NamespacedName]*model.Starts{}
		for name := range p.builder.steps.next {
			starts[name] = p.builder.starts[name]
		}
		return starts
	})
}
