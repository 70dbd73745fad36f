package apply

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// others listens for commits of other programs while it pays, and counts the commits that it may have missed.
type others struct {
	// table is the name of the tables whose changes matter.
	table string
	// wanted is true after [Kernel.Listen]. listener is nil until it has been opened once.
	wanted   bool
	listener *nft.Listener
	// ended is closed when the goroutine of the listener has stopped. joined is true if the listener is a member of the
	// kernel's group. until is the time until which it shall be a member.
	ended  chan struct{}
	joined bool
	until  time.Time
	heard  chan struct{}
	last   atomic.Pointer[nft.Commit]

	mu sync.Mutex
	// touched describes the first foreign change of the tables that no full sync has repaired; "" if there is none.
	// touchedIn is the generation after this change. fixed is the generation up to which all changes are repaired.
	touched          string
	touchedIn, fixed uint32
	// The listener heard every commit after the generation calmFrom up to calmTo, and none of them changed the tables.
	calmFrom, calmTo uint32
	// since is the generation after which commits count; 0 before the first sync. unheard is the number of foreign
	// commits that the ruleset's generation shows, minus the number that the listener heard. lost is true if the
	// listener lost a message.
	since   uint32
	unheard int
	lost    bool
	// active is true if there was a foreign commit since the last call of take.
	active bool
}

// attention is the time after a foreign commit for which the listener is a member of the kernel's group.
const attention = time.Hour

// Listen allows the Kernel to listen for commits of other programs. The kernel announces each commit immediately, with
// the program and the changed objects, but a listener in any network namespace doubles the time of all commits. So the
// listener is a member of the kernel's group only for an hour after a foreign commit, which [Kernel.CheckRuleset]
// notices by the ruleset's generation, and never during a commit of this program. Without the listener, CheckRuleset
// does not know the program, and must read all elements to find a changed value. After an error, CheckRuleset tries
// again.
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
	o.listener, o.ended, o.joined = l, make(chan struct{}), false
	go o.listen(l, o.ended, ownName())
	return nil
}

func (o *others) join() { o.joined = o.listener.Join() == nil }

// tend makes the listener a member of the kernel's group while it pays: always, or for some time after a foreign
// commit, if there was one since the last call. If the listener's socket failed, tend opens it again. After an error,
// only the generation shows foreign commits until the next call.
func (o *others) tend(now time.Time, foreign, always bool) {
	if foreign {
		o.until = now.Add(attention)
	}
	if o.failed() && (!o.wanted || o.open() != nil) {
		return
	}
	switch pays := always || now.Before(o.until); {
	case pays && !o.joined:
		o.join()
	case !pays && o.joined:
		o.joined = o.listener.Leave() != nil
	}
}

// failed reports whether there is no listener. It closes a listener whose socket failed.
func (o *others) failed() bool {
	if o.listener == nil {
		return true
	}
	select {
	case <-o.ended:
		_ = o.listener.Close()
		return true
	default:
		return false
	}
}

// take reports whether there was a foreign commit since the last call, and whether the listener may have missed one.
func (o *others) take() (active, missed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	active, missed = o.active, o.lost || o.unheard > 0
	o.active, o.lost, o.unheard = false, false, min(0, o.unheard)
	return active, missed
}

// isThisProgram reports whether a name is a name of this program: the name of this process, kube-nftproxy, or
// kube-proxy, a link in the image. Another instance of this program, which is about to stop, may still commit.
func isThisProgram(program, own string) bool {
	return program == own || program == "kube-nftproxy" || program == "kube-proxy"
}

// ownName returns the kernel's name of this process, or "".
func ownName() string {
	text, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// listen records commits until the listener is closed or fails.
func (o *others) listen(l *nft.Listener, ended chan<- struct{}, own string) {
	defer close(ended)
	for {
		c, err := l.Next()
		if err != nil {
			return
		}
		o.note(&c, own)
		o.last.Store(&c)
		select {
		case o.heard <- struct{}{}:
		default: // a signal is waiting already
		}
	}
}

// note records a foreign commit.
func (o *others) note(c *nft.Commit, own string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.active = true
	if c.Lost {
		o.lost = true
		return
	}
	touch := touchOf(c)
	if touch != "" {
		o.calmFrom = c.Generation
	} else if c.Generation != o.calmTo+1 {
		o.calmFrom = c.Generation - 1
	}
	o.calmTo = c.Generation
	if o.since != 0 && after(c.Generation, o.since) {
		o.unheard--
	}
	// Ignore changes by a second instance of this program, which may exist while one instance replaces the other. Two
	// instances that repair each other's changes would never stop. A comparison of the tables finds the changes of a
	// second instance.
	if touch != "" && !isThisProgram(c.Program, own) && o.touched == "" && after(c.Generation, o.fixed) {
		o.touched, o.touchedIn = "another program has changed the tables: "+touch, c.Generation
	}
}

// touchOf describes a commit's change of the tables; "" if there is none. Other programs may change elements that
// packets add.
func touchOf(c *nft.Commit) string {
	for _, t := range c.Touched {
		if !t.Elements || !plan.FilledByPackets(t.Name) {
			return t.String()
		}
	}
	return ""
}

// harmless reports whether the listener heard every commit between two generations, and none of them changed the
// tables.
func (o *others) harmless(from, to uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int32(from-o.calmFrom) >= 0 && int32(o.calmTo-to) >= 0
}

// countForeign adds the number of foreign commits that the ruleset's generation shows. The first call only stores the
// generation.
func (o *others) countForeign(generation uint32, commits int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == 0 {
		o.since = generation
		return
	}
	o.unheard += commits
	o.active = o.active || commits > 0
	o.lost = o.lost || o.listener == nil && commits > 0
}

// after reports whether generation a follows generation b, or b is 0. Generations wrap around, and are never 0.
func after(a, b uint32) bool { return b == 0 || int32(a-b) > 0 }

// forgive makes the commits up to a generation count as heard, because a full sync replaces the tables. It reports
// whether the listener missed any of them.
func (o *others) forgive(generation uint32) (missed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	missed = o.unheard > 0
	o.since, o.unheard = generation, min(0, o.unheard)
	return missed
}

// recordRepair records that a full sync has repaired all changes up to a generation, also those in lost messages: the
// messages about a flush of many elements overrun the listener's queue.
func (o *others) recordRepair(generation uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = false
	if o.fixed = generation; !after(o.touchedIn, generation) {
		o.touched = ""
	}
}

// suspect records a foreign change of the tables that the listener did not hear, with a description and the generation
// of its discovery.
func (o *others) suspect(description string, generation uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.touched == "" {
		o.touched, o.touchedIn = description, generation
	}
}

// Heard returns a channel of capacity one. It has a value if another program has committed since the last receive. It
// stays empty without [Kernel.Listen].
func (k *Kernel) Heard() <-chan struct{} { return k.others.heard }

// Touched describes a foreign change of the tables that the listener or a check of all elements has found since the
// last full sync; "" if there is none. It does not query the kernel.
func (k *Kernel) Touched() string {
	k.others.mu.Lock()
	defer k.others.mu.Unlock()
	return k.others.touched
}

// Author returns the process of the last foreign commit that the listener heard. It is zero if the kernel did not name
// the process.
func (k *Kernel) Author() nft.Author {
	if c := k.others.last.Load(); c != nil {
		return c.Author()
	}
	return nft.Author{}
}

func (o *others) close() error {
	if o.listener == nil {
		return nil
	}
	return o.listener.Close()
}
