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

// Repaired reports whether the sync repaired the tables.
func (s *Sync) Repaired() bool { return s.Compared != "" && s.Result.Kind == apply.Full }

// By returns the author of the foreign change that made the sync compare, or "".
func (s *Sync) By() string {
	if s.Compared != ForeignChange {
		return ""
	}
	return s.Author.String()
}
