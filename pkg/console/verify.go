package console

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// errInFlight means that a verification met a change in progress.
var errInFlight = errors.New("changes kept coming")

// verify compares the kernel with tables that are newly planned from the API's objects, beside the loop. A difference that a
// second comparison does not find was a change in progress, or has been repaired. If flows is set, it also searches connection tracking.
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

// compare compares the kernel's tables with new ones.
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
		if p, err = c.planAnew(ctx); err != nil {
			return nil, err
		}
		if last, err = apply.Differences(p, most); last != nil && err == nil {
			if last.Passing = v.First(); last.Total == 0 {
				return last, nil
			}
			v = last
		} else if !errors.Is(err, apply.ErrMoving) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	if v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("compare the kernel with the plan: %w: %w", errInFlight, err)
}

// planAnew plans all present Services as after a start.
func (c *Console) planAnew(ctx context.Context) (*plan.Planner, error) {
	facts := c.Loop.Facts()
	p := plan.New(c.Tables)
	numbers, err := c.Loop.Numbers(ctx)
	if err != nil {
		return nil, err
	}
	p.TakeNumbers(numbers)
	_, err = c.Plan(p, c.Families, c.Source, &facts, nil)
	return p, err
}
