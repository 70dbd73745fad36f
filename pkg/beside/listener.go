package beside

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Listener is a row of functions with which a part beside the loop follows it. The loop calls them and waits for them,
// so they must not block. It does not call a nil function.
type Listener struct {
	// Of restricts Service, Synced and Serve to changes of Services that have one of these kinds before or after the
	// change. 0 stands for all changes.
	Of Kinds
	// Service announces a Service that is about to be planned. It is immutable. It is nil if there is nothing to
	// program, for example because the Service was deleted.
	Service func(types.NamespacedName, *model.Service)
	// Node announces that this node was read again.
	Node func(*Node)
	// Synced announces the outcome of a sync. With Of, it announces failed syncs, and the first successful one, after a
	// change of such a Service. It announces the first sync, and a sync after a reading of this node, in any case.
	Synced func(*Sync)
	// Serve starts work such as listening on sockets of this node, or stops it because another instance serves. The
	// loop calls Serve(true) after each successful sync with a change of a Service that has one of the kinds in Of. It
	// also calls Serve(true) twice a second, so that a listener can retry failed work.
	Serve func(bool)
}

// Kinds is a set of properties that concern some listeners only.
type Kinds uint8

// The kinds of Services.
const (
	NodePorts Kinds = 1 << iota
	HealthChecks
	Terminating // TCP connections to endpoints that left are terminated
	Remembering // session affinity
	Holding     // packets wait for an endpoint
	AllKinds    = 1<<iota - 1
)

// KindsOf returns the kinds of a Service, which may be nil.
func KindsOf(s *model.Service) (of Kinds) {
	if s == nil {
		return 0
	}
	set := func(kind Kinds, has bool) {
		if has {
			of |= kind
		}
	}
	set(HealthChecks, s.HealthCheckNodePort != 0)
	set(Terminating, s.TerminateGone)
	set(Holding, s.ScaleToZero)
	for _, port := range s.Ports {
		set(Remembering, port.Affinity > 0)
		for i := range port.Frontends {
			set(NodePorts, port.Frontends[i].Kind == model.NodePort)
		}
	}
	return of
}
