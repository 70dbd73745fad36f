package descriptors

import (
	"errors"
	"net"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// Listen opens a listener with a descriptor of a namespace. If the namespace cannot have one, the error is an [Error].
// The listener gives the descriptor back when it is closed.
func (b *Budget) Listen(namespace string, open func() (net.Listener, error)) (net.Listener, error) {
	if lacks := b.Take(namespace, 1); lacks != room.None {
		return nil, b.Error(lacks, namespace)
	}
	give := sync.OnceFunc(func() { b.Give(namespace, 1) })
	l, err := open()
	if err != nil {
		give()
		return nil, err
	}
	return counted{l, give}, nil
}

// counted is a listener with a descriptor of the budget.
type counted struct {
	net.Listener
	give func()
}

// Close implements [net.Listener].
func (l counted) Close() error {
	defer l.give()
	return l.Listener.Close()
}

// mostRetries is the largest number of failed sockets that are retried at once. The loop may wait for the attempts.
const mostRetries = 100

// Failures are the sockets of Services that cannot be opened. Its methods are safe for concurrent use.
type Failures[K comparable] struct {
	// Report receives a problem of a Service once, when the number of failures of one of its sockets has reached
	// Patience. Withdraw receives the same problem when none of its sockets fails any more.
	Report, Withdraw func(model.Problem)
	Patience         int

	mu       sync.Mutex
	sockets  map[K]*failure
	services map[types.NamespacedName]*failing[K]
}

// failure is the last error of a socket, with its Service and the number of failed attempts.
type failure struct {
	service types.NamespacedName
	err     error
	times   int
}

// failing has the failed sockets of a Service, and the reported problem, if any.
type failing[K comparable] struct {
	sockets  map[K]struct{}
	reported *model.Problem
}

// Note records a failed attempt to open a socket of a Service. problem returns the problem to report.
func (f *Failures[K]) Note(k K, service types.NamespacedName, err error, problem func() model.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sockets == nil {
		f.sockets, f.services = map[K]*failure{}, map[types.NamespacedName]*failing[K]{}
	}
	if s := f.sockets[k]; s == nil || s.service != service {
		f.forget(k)
		f.sockets[k] = &failure{service: service}
		if f.services[service] == nil {
			f.services[service] = &failing[K]{sockets: map[K]struct{}{}}
		}
		f.services[service].sockets[k] = struct{}{}
	}
	s, of := f.sockets[k], f.services[service]
	s.err = err
	if s.times++; s.times >= f.Patience && of.reported == nil {
		p := problem()
		of.reported = &p
		f.Report(p)
	}
}

// Forget forgets the failure of a socket, if there is one.
func (f *Failures[K]) Forget(k K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(k)
}

func (f *Failures[K]) forget(k K) {
	s := f.sockets[k]
	if s == nil {
		return
	}
	delete(f.sockets, k)
	of := f.services[s.service]
	if delete(of.sockets, k); len(of.sockets) > 0 {
		return
	}
	delete(f.services, s.service)
	if of.reported != nil {
		f.Withdraw(*of.reported)
	}
}

// Of returns the last error of a socket, or nil if it has not failed.
func (f *Failures[K]) Of(k K) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sockets[k]; s != nil {
		return s.err
	}
	return nil
}

// OfService returns the last error of each failed socket of a Service.
func (f *Failures[K]) OfService(name types.NamespacedName) map[K]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.services[name]
	if of == nil {
		return nil
	}
	list := make(map[K]error, len(of.sockets))
	for k := range of.sockets {
		list[k] = f.sockets[k].err
	}
	return list
}

// All returns the last error of each failed socket.
func (f *Failures[K]) All() map[K]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[K]error{}
	for k, s := range f.sockets {
		all[k] = s.err
	}
	return all
}

// Len returns the number of failed sockets.
func (f *Failures[K]) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sockets)
}

// Due returns the failed sockets to retry: a limited number of those for which may returns true. Go iterates over a map
// in random order, so each socket has its turn. Sockets without a descriptor do not count: the attempt costs nothing.
func (f *Failures[K]) Due(may func(K) bool) (list []K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for k, s := range f.sockets {
		if !may(k) {
			continue
		}
		if _, cheap := errors.AsType[*Error](s.err); !cheap {
			if n++; n > mostRetries {
				continue
			}
		}
		list = append(list, k)
	}
	return list
}
