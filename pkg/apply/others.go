package apply

import (
	"sync/atomic"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// others hears of what other programs commit.
type others struct {
	listener *nft.Listener
	heard    chan struct{}
	last     atomic.Pointer[nft.Commit]
}

// Listen makes the kernel say at once when another program has changed the ruleset, and which one. Without it [Kernel.Meddled]
// tells the same when it is asked, but not who it was. Commits of this process are neither heard nor slowed down.
func (k *Kernel) Listen() error {
	l, err := nft.Listen()
	if err != nil {
		return err
	}
	k.others.listener = l
	go k.others.listen()
	return l.Join()
}

// listen ends when the listener is closed.
func (o *others) listen() {
	for {
		c, err := o.listener.Next()
		if err != nil {
			return
		}
		o.last.Store(&c)
		select {
		case o.heard <- struct{}{}:
		default: // a signal is waiting already
		}
	}
}

// Heard returns a channel of capacity one that has a value when another program has committed something since it was last
// received from. It stays empty without [Kernel.Listen].
func (k *Kernel) Heard() <-chan struct{} { return k.others.heard }

// Author names the program that was the last to commit something beside us, "unknown" if the kernel didn't say.
func (k *Kernel) Author() string {
	if c := k.others.last.Load(); c != nil {
		return c.Author()
	}
	return nft.Commit{}.Author()
}

// deafly runs f while nothing is heard. What others commit meanwhile shows in the ruleset's generation.
func (o *others) deafly(f func() error) error {
	if o.listener == nil {
		return f()
	}
	// That it can't leave or join makes f slower, or others' changes to be seen half a second later.
	_ = o.listener.Leave()
	defer func() { _ = o.listener.Join() }()
	return f()
}

func (o *others) close() error {
	if o.listener == nil {
		return nil
	}
	return o.listener.Close()
}
