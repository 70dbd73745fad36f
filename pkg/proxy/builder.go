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
