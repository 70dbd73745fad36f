package proxy

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// block is a number of Services that one goroutine makes of their objects.
type block struct {
	names    []types.NamespacedName
	services []*model.Service
	claimed  atomic.Bool
	built    chan struct{}
}

// blockSize is large enough for handing over to cost nothing, and small enough for nobody to wait long.
const blockSize = 32

// build makes Services of their objects, and calls take with each, in the order of the names. What becomes of one doesn't depend
// on the others, so all processors do it where there are many; take is only called by the caller's goroutine.
func (p *Proxy) build(names []types.NamespacedName, take func(types.NamespacedName, *model.Service)) {
	if len(names) <= blockSize {
		for _, name := range names {
			take(name, p.rebuildService(name))
		}
		return
	}
	blocks := make([]*block, 0, len(names)/blockSize+1)
	for chunk := range slices.Chunk(names, blockSize) {
		blocks = append(blocks, &block{names: chunk, built: make(chan struct{})})
	}
	var others sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(blocks)) - 1 {
		others.Go(func() {
			for _, b := range blocks {
				p.buildBlock(b)
			}
		})
	}
	for _, b := range blocks {
		p.buildBlock(b)
		<-b.built
		for i, name := range b.names {
			delete(p.readings, name)
			take(name, b.services[i])
		}
		b.services = nil
	}
	others.Wait()
}

// buildBlock does nothing if somebody else has begun to.
func (p *Proxy) buildBlock(b *block) {
	if !b.claimed.CompareAndSwap(false, true) {
		return
	}
	b.services = make([]*model.Service, len(b.names))
	for i, name := range b.names {
		b.services[i] = p.buildService(name)
	}
	close(b.built)
}

func (p *Proxy) buildService(name types.NamespacedName) *model.Service {
	return model.Build(p.Source.Service(name), p.Source.Slices(name), p.node, p.Model)
}

// rebuildService is buildService, but remembers what it has read of Services with many slices: that of one changes at a time.
func (p *Proxy) rebuildService(name types.NamespacedName) *model.Service {
	s, reading := model.Rebuild(p.readings[name], p.Source.Service(name), p.Source.Stored(name), p.node, p.Model)
	if reading != nil {
		p.readings[name] = reading
	} else {
		delete(p.readings, name)
	}
	return s
}
