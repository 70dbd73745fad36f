package apply

import (
	"os"
	"slices"
	"strings"
	locks "sync" // tests have a function of the other name
	"sync/atomic"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// others hears of what other programs commit.
type others struct {
	// table is the name of the tables whose changes matter.
	table string
	// wanted says that it is to hear, listener is nil as long as that has never succeeded.
	wanted   bool
	listener *nft.Listener
	// ended is closed when nothing more is heard from the listener, deaf says that it isn't a member of the kernel's group.
	ended chan struct{}
	deaf  bool
	heard chan struct{}
	last  atomic.Pointer[nft.Commit]

	mu locks.Mutex
	// touched tells of the first change of our tables that isn't settled, "" if there is none, and touchedIn which generation
	// it made. What was changed up to the generation fixed is settled.
	touched          string
	touchedIn, fixed uint32
	// Everything that was committed after the generation calmFrom up to calmTo was heard of, and not in our tables.
	calmFrom, calmTo uint32
	// since is the generation from which on commits count, 0 before the first sync. unheard are the commits of others, according to the
	// ruleset's generation, less those that were heard of.
	since   uint32
	unheard int
	lost    bool
	// ports are those of the last sockets by which the lease was renewed.
	ports [2]uint32
}

// renewedBy says by which socket the lease is renewed from now on.
func (o *others) renewedBy(port uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ports[0] != port {
		o.ports = [2]uint32{port, o.ports[0]}
	}
}

// Listen makes the kernel say at once when another program has changed the ruleset, which one, and whether it was in our
// tables. Without it [Kernel.CheckRuleset] tells the same when it is asked, but not who it was, and has to read all elements to know
// that none has another value. Commits of this process are neither heard nor slowed down. After an error, CheckRuleset tries again.
func (k *Kernel) Listen() error {
	k.others.wanted = true
	k.others.table = k.Table
	return k.others.open()
}

func (o *others) open() error {
	l, err := nft.Listen(o.table)
	if err != nil {
		return err
	}
	o.listener, o.ended = l, make(chan struct{})
	go o.listen(l, o.ended, ownName())
	return o.join()
}

func (o *others) join() error {
	err := o.listener.Join()
	o.deaf = err != nil
	return err
}

// revive makes it hear again, if the socket broke or couldn't join. Until that succeeds, what others commit shows in the
// ruleset's generation only.
func (o *others) revive() {
	if o.listener == nil {
		if o.wanted {
			_ = o.open() // the next look tries again
		}
		return
	}
	select {
	case <-o.ended:
		_ = o.listener.Close()
		_ = o.open() // the next look tries again
	default:
		if o.deaf {
			_ = o.join()
		}
	}
}

// isOurs reports whether a program of a name is this one, by its own name, or by the link that replaces kube-proxy in its image. Two
// instances agree which one serves; one that is about to stop may still commit.
func isOurs(program, own string) bool {
	return program == own || program == "kube-nftproxy" || program == "kube-proxy"
}

// ownName is the kernel's name of this process.
func ownName() string {
	text, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// listen ends when the listener is closed.
func (o *others) listen(l *nft.Listener, ended chan<- struct{}, own string) {
	defer close(ended)
	for {
		c, err := l.Next()
		if err != nil {
			return
		}
		if !o.note(&c, own) {
			continue
		}
		o.last.Store(&c)
		select {
		case o.heard <- struct{}{}:
		default: // a signal is waiting already
		}
	}
}

// note takes up a commit. It reports false for a renewal of the lease by this process.
func (o *others) note(c *nft.Commit, own string) (foreign bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.Lost {
		o.lost = true
		return true
	}
	renewal := c.Port != 0 && slices.Contains(o.ports[:], c.Port)
	touch := touchOf(c)
	if renewal {
		touch = ""
	}
	if touch != "" {
		o.calmFrom = c.Generation
	} else if c.Generation != o.calmTo+1 {
		o.calmFrom = c.Generation - 1
	}
	o.calmTo = c.Generation
	if renewal {
		return false
	}
	if o.since != 0 && after(c.Generation, o.since) {
		o.unheard--
	}
	// A second instance of this program, as while one replaces another, writes what it wants: the tables tell what that is, and
	// two that undo each other's work would never end.
	if touch != "" && !isOurs(c.Program, own) && o.touched == "" && after(c.Generation, o.fixed) {
		o.touched, o.touchedIn = "another program has changed it: "+touch, c.Generation
	}
	return true
}

// touchOf tells what a commit did to our tables. What packets add may be changed by others, too.
func touchOf(c *nft.Commit) string {
	for _, t := range c.Touched {
		if !t.Elements || !plan.FilledByPackets(t.Name) {
			return t.String()
		}
	}
	return ""
}

// harmless reports whether all that was committed between two generations was heard of, and not in our tables.
func (o *others) harmless(from, to uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int32(from-o.calmFrom) >= 0 && int32(o.calmTo-to) >= 0
}

// counted takes the ruleset's generation into account: others have made a number of commits up to it.
func (o *others) counted(generation uint32, commits int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == 0 {
		o.since = generation
		return
	}
	o.unheard += commits
	o.lost = o.lost || o.listener == nil && commits > 0
}

// after compares generations, which count in a circle and never are 0.
func after(a, b uint32) bool { return b == 0 || int32(a-b) > 0 }

// settled forgets what was changed up to a generation, because all has been written anew since.
func (o *others) settled(generation uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fixed = generation; !after(o.touchedIn, generation) {
		o.touched = ""
	}
}

// suspect notes that tables are not what they were when the ruleset had a generation.
func (o *others) suspect(what string, generation uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.touched == "" {
		o.touched, o.touchedIn = what, generation
	}
}

// suspicion tells how somebody has changed our tables since that was settled.
func (o *others) suspicion() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.touched
}

// takeMissed reports, once, whether others may have committed something that wasn't heard of.
func (o *others) takeMissed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	missed := o.lost || o.unheard > 0
	o.lost, o.unheard = false, min(0, o.unheard)
	return missed
}

// Heard returns a channel of capacity one that has a value when another program has committed something since it was last
// received from. It stays empty without [Kernel.Listen].
func (k *Kernel) Heard() <-chan struct{} { return k.others.heard }

// Touched reports whether another program was heard to have changed our tables since they were last written anew. It asks nobody:
// without [Kernel.Listen] it reports false.
func (k *Kernel) Touched() bool { return k.others.suspicion() != "" }

// Author returns the process that was the last to commit something beside this program, zero if the kernel didn't say.
func (k *Kernel) Author() nft.Author {
	if c := k.others.last.Load(); c != nil {
		return c.Author()
	}
	return nft.Author{}
}

// deafly runs f while nothing is heard. What others commit meanwhile shows in the ruleset's generation.
func (o *others) deafly(f func() error) error {
	if o.listener == nil {
		return f()
	}
	if err := o.listener.Leave(); err != nil {
		// What it heard of f would be taken for others' commits.
		_ = o.listener.Close()
	}
	// Where it can't join, others' changes are seen half a second later.
	defer func() { _ = o.join() }()
	return f()
}

func (o *others) close() error {
	if o.listener == nil {
		return nil
	}
	return o.listener.Close()
}
