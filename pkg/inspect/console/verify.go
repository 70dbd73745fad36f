package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/compare"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// errInFlight means that the ruleset or a share changed during each comparison.
var errInFlight = errors.New("the ruleset changes continuously")

// errStep means that the share of a starting endpoint rose during the comparison.
var errStep = errors.New("the share of a starting endpoint rose meanwhile")

// verify compares the tables in the kernel with a new plan from the API objects, beside the loop. If a second
// comparison does not find a difference, the difference was a change in progress, or has been repaired. If flows is
// true, verify also searches connection tracking.
func (c *Console) verify(ctx context.Context, flows bool) (*view.Verification, error) {
	c.verifying.Lock()
	defer c.verifying.Unlock()
	defer debug.FreeOSMemory() // returns the memory, which is large for a large cluster
	v, err := c.compare(ctx)
	if err == nil && flows {
		v.Flows, err = c.flows(ctx)
	}
	if err != nil {
		return nil, err
	}
	v.Conclude(c.NodeName)
	return v, nil
}

// compare compares the tables in the kernel with a new plan, repeatedly if there is a difference.
func (c *Console) compare(ctx context.Context) (*view.Verification, error) {
	const (
		looks, most = 4, 100
		between     = 1200 * time.Millisecond // the program may commit meanwhile
	)
	var v *view.Verification
	err := errInFlight
	for i := range looks {
		if i > 0 {
			select {
			case <-time.After(between):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		var last *view.Verification
		var p *plan.Planner
		var starts, now map[types.NamespacedName]*model.Starts
		if p, starts, err = c.planAgain(ctx); err != nil {
			return nil, err
		}
		if last, err = compare.Verify(p, most); last != nil && err == nil {
			if last.Passing = v.First(); last.Total == 0 {
				return last, nil
			}
			if now, err = c.Loop.Starts(ctx); err != nil {
				return nil, err
			}
			if !maps.Equal(starts, now) {
				err = errStep
				continue
			}
			v = last
		} else if !errors.Is(err, nft.ErrChanged) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	if v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("compare the kernel with the plan: %w: %w", errInFlight, err)
}

// planAgain makes a new plan of all Services, with the numbers and the starting endpoints of the loop. It also returns
// the starting endpoints.
func (c *Console) planAgain(ctx context.Context) (*plan.Planner, map[types.NamespacedName]*model.Starts, error) {
	facts := c.Loop.Facts()
	numbers, err := c.Loop.Numbers(ctx)
	if err != nil {
		return nil, nil, err
	}
	p := plan.Continue(c.Tables, numbers)
	starts, err := c.Loop.Starts(ctx)
	if err != nil {
		return nil, nil, err
	}
	_, err = c.Plan(p, c.Families, c.Source, &facts, starts, nil)
	return p, starts, err
}
