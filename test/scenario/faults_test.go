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

// Faults. There is one more: "nft COMMAND", a command that another program runs. If the command fails, it changes nothing.
const (
	restart   = "restart"    // the program exits and is restarted
	refuse    = "refuse"     // the kernel rejects the next batch
	loseReply = "lose-reply" // the next batch is committed, and the reply is lost
	haste     = "haste"      // the next step precedes the deletion of unused chains
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

// fault injects a fault, and returns the pipeline after it.
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
			// The command fails if its object does not exist.
			_, _ = h.Command(context.Background(), "nft", strings.Split(command, " ")...).CombinedOutput()
		}
	}
	return p, nil
}

// loadAfter reads the folder. After faults, it ignores failed syncs.
func (p *pipeline) loadAfter(faults []string) error {
	err := p.load()
	if len(faults) == 0 {
		return err
	}
	p.kernel.forgive()
	return nil
}

// repaired waits until there are no differences. After a timeout, it returns the remaining ones.
func (p *pipeline) repaired(differs func() (string, error)) (diff string, err error) {
	for deadline := time.Now().Add(patience); ; {
		_, changed, _ := p.kernel.state()
		// The proxy checks for foreign changes twice a second, by its own clock.
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

// sync applies a fault to a batch.
func (r *recorder) sync(p *plan.Planner) (apply.Result, error) {
	r.mu.Lock()
	fault := r.fault
	r.fault = ""
	r.mu.Unlock()
	switch fault {
	case refuse:
		return apply.Result{}, errors.New("rejected by the test")
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

// forgive drops the errors so far.
func (r *recorder) forgive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = nil
}
