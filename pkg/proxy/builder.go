package proxy

import (
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
	// clock returns the current time, or the zero time before the first sync.
	clock func() time.Time
	// starts holds the starting endpoints of Services with slow start, and steps the times of their next steps.
	starts map[types.NamespacedName]*model.Starts
	steps  steps
}

// build builds a Service, and records its starting endpoints.
func (b *builder) build(name types.NamespacedName) *model.Service {
	options, now := b.options, b.clock()
	options.Starts, options.Now = b.starts[name], &now
	s := model.Build(b.source.Get(name), *b.node, options)
	if s == nil || s.Starts == nil {
		delete(b.starts, name)
		b.steps.note(name, time.Time{})
		return s
	}
	b.starts[name] = s.Starts
	b.steps.note(name, s.Starts.Next())
	return s
}
