package proxy

import (
	"errors"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// guard protects the tables against foreign changes. It decides when the loop checks for them, and whether the next
// sync compares the tables with the plan before it writes. The methods due and touched change nothing. All other
// methods act.
type guard struct {
	kernel Kernel
	// doubted counts doubts.
	doubted func()
	now     func() time.Time
	// checkAt is the time of the next check, lastForeign the time of the last foreign change.
	checkAt, lastForeign time.Time
	// reason is the reason why the next sync compares. It is empty if there is no doubt, and for the first attempt of
	// the first sync, which always compares.
	reason beside.Reason
}

// checkEvery is the time between two checks for foreign changes of the ruleset. A check takes some microseconds.
const checkEvery = 500 * time.Millisecond

// due reports whether it is time for a check.
func (g *guard) due(now time.Time) bool { return g.kernel.Known() && !now.Before(g.checkAt) }

// touched reports whether the kernel has announced a foreign change of the trusted tables. If another program changes
// them continuously, it returns true at most twice a second.
func (g *guard) touched() bool {
	return g.kernel.Known() && g.kernel.Touched() != "" && g.now().Sub(g.lastForeign) >= checkEvery
}

// checkSoon schedules a check: immediately, but at most twice a second.
func (g *guard) checkSoon() {
	at := g.now()
	if next := g.lastForeign.Add(checkEvery); next.After(at) {
		at = next
	}
	if at.Before(g.checkAt) {
		g.checkAt = at
	}
}

// check looks for foreign changes of the ruleset. After a change or an error, the next sync compares.
func (g *guard) check() (changed bool, err error) {
	now := g.now()
	g.checkAt = now.Add(checkEvery)
	changed, err = g.kernel.CheckRuleset()
	switch {
	case err != nil:
		g.doubt(beside.FailedSync)
	case changed:
		g.distrust(now)
	}
	return changed, err
}

// checkAfter looks for foreign changes that may have caused a sync to fail. If there are any, it returns true, and the
// next sync compares.
func (g *guard) checkAfter(failure error) (changed bool) {
	if errors.Is(failure, nft.ErrUnknown) {
		return false // this sync may have made the change
	}
	if changed, err := g.kernel.CheckRuleset(); err != nil || !changed {
		return false
	}
	g.distrust(g.now())
	return true
}

// doubtIfTouched makes the next sync compare if the tables were touched.
func (g *guard) doubtIfTouched() {
	if g.touched() {
		g.distrust(g.now())
	}
}

// distrust makes the next sync compare because of a foreign change.
func (g *guard) distrust(now time.Time) {
	g.lastForeign, g.checkAt = now, now.Add(checkEvery)
	g.doubt(beside.ForeignChange)
}

// doubt makes the next sync compare the tables with the plan. Until a sync succeeds, the first reason is kept.
func (g *guard) doubt(reason beside.Reason) {
	g.kernel.Doubt()
	g.note(reason)
}

// note counts a doubt and records its reason. After a failed sync, doubt is not necessary: apply.Kernel already
// distrusts the tables.
func (g *guard) note(reason beside.Reason) {
	g.doubted()
	if g.reason == "" {
		g.reason = reason
	}
}

// complete sets the fields of a sync that depend on its outcome. If the sync compared because of a doubt, complete sets
// the reason and, for a foreign change, the author. After a failure, the next sync compares.
func (g *guard) complete(s *beside.Sync) {
	if s.Err != nil {
		g.note(beside.FailedSync)
		return
	}
	if s.Compared, g.reason = g.reason, ""; s.Compared == beside.ForeignChange {
		s.Author = g.kernel.Author()
	}
}
