package scenario

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Faults, besides "nft COMMAND": another program's command, which does nothing where it fails.
const (
	restart   = "restart"    // the program ends, and is started anew
	refuse    = "refuse"     // the kernel refuses the next batch
	loseReply = "lose-reply" // the next batch is committed, and the answer is lost
	haste     = "haste"      // the next step comes before chains are retired
)

func checkFaults(list []string) error {
	for _, fault := range list {
		switch fault {
		case restart, refuse, loseReply, haste:
		default:
			if !strings.HasPrefix(fault, "nft ") {
				return fmt.Errorf("%q is not a fault", fault)
			}
		}
	}
	return nil
}

// fault does something to the tables, or to the program, and returns the pipeline that is there afterwards.
func (p *pipeline) fault(h *lab.Host, s settings, fault string) (*pipeline, error) {
	switch fault {
	case restart:
		err := p.close()
		next, started := startPipeline(h, s, p.folder)
		if started != nil {
			return p, errors.Join(err, started)
		}
		return next, err
	case refuse, loseReply:
		p.kernel.spoil(fault)
	default:
		if command, ok := strings.CutPrefix(fault, "nft "); ok {
			// It may be about what isn't there.
			_, _ = h.Command(context.Background(), "nft", strings.Split(command, " ")...).CombinedOutput()
		}
	}
	return p, nil
}

// loadAfter reads the folder. After faults, syncs may have failed.
func (p *pipeline) loadAfter(faults []string) error {
	err := p.load()
	if len(faults) == 0 {
		return err
	}
	p.kernel.forgive()
	return nil
}

// repaired waits until nothing differs any longer, and returns what does.
func (p *pipeline) repaired(differs func() (string, error)) (diff string, err error) {
	for deadline := time.Now().Add(patience); ; {
		_, changed, _ := p.kernel.state()
		// Others' changes are looked at twice a second, by the proxy's clock.
		p.clock.advance(time.Second)
		settled := p.settle()
		p.kernel.forgive()
		diff, err = differs()
		if err == nil && diff == "" && settled == nil && !p.kernel.spoiled() || time.Now().After(deadline) {
			return diff, err
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sync does what a fault does to a batch.
func (r *recorder) sync(p *plan.Planner) (apply.Result, error) {
	r.mu.Lock()
	fault := r.fault
	r.fault = ""
	r.mu.Unlock()
	switch fault {
	case refuse:
		return apply.Result{}, errors.New("refused, as the test wants")
	case loseReply:
		result, err := r.Kernel.Sync(p)
		r.Doubt()
		return result, errors.Join(err, nft.ErrUnknown)
	}
	return r.Kernel.Sync(p)
}

// spoil makes the next sync fail.
func (r *recorder) spoil(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

func (r *recorder) spoiled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault != ""
}

// forgive forgets the errors so far.
func (r *recorder) forgive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = nil
}
