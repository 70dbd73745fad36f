// Package beside has what all parts beside the loop share: the announcements of the loop, and the goroutine that works
// in pauses.
//
// In: the loop's announcements; work and its pauses.
// Out: the same announcements for each part; calls of the work, and log lines about its errors.
// Never: knows a part.
package beside

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Node has the addresses of a reading of this node. It is immutable.
type Node struct {
	// Addresses serve node ports. Servers listen on Sockets: the same addresses, or the unspecified one if every local
	// address serves node ports.
	Addresses, Sockets [2][]netip.Addr
}

// Sync is the outcome of a sync.
type Sync struct {
	// Start is the time when planning began. Begun and End are the times when the commit began and ended.
	Start, Begun, End time.Time
	// Services are the planned Services, in the order of planning.
	Services []types.NamespacedName
	// Result describes the commit. If Err is not nil, the sync failed.
	Result apply.Result
	Err    error
	// First is true until a sync succeeds. Waiting is true if changed Services wait to be planned.
	First, Waiting bool
	// Compared is the reason of the doubt that made the sync compare the tables with the plan, or "" without a doubt.
	// If the reason is a foreign change, Author is the author of the last foreign change.
	Compared Reason
	Author   nft.Author
}

// Reason is the reason of a comparison of the tables with the plan.
type Reason string

// The reasons: another program has changed the ruleset, the sync period has passed, or the previous sync has failed.
const (
	ForeignChange Reason = "foreign_change"
	Period        Reason = "period"
	FailedSync    Reason = "failed_sync"
)

// By returns the author of the foreign change that made the sync compare, or "".
func (s *Sync) By() string {
	if s.Compared != ForeignChange {
		return ""
	}
	return s.Author.String()
}

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
	// Done, if not nil, is closed when the part does not follow the loop any more.
	Done <-chan struct{}
}

// Left reports whether the part does not follow the loop any more.
func (l *Listener) Left() bool {
	select {
	case <-l.Done:
		return true
	default:
		return false
	}
}

// Kinds is a set of properties that concern some listeners only.
type Kinds uint8

// The kinds of Services.
const (
	NodePorts Kinds = 1 << iota // or host ports
	HealthChecks
	Terminating // TCP connections to endpoints that left are terminated
	Spreading   // TCP connections are spread over more endpoints
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
	set(Spreading, s.SpreadSilent > 0)
	set(Holding, s.ScaleToZero)
	for _, port := range s.Ports {
		set(Remembering, port.Affinity > 0)
		for i := range port.Frontends {
			set(NodePorts, !port.Frontends[i].Addr.IsValid())
		}
	}
	return of
}
