package apply

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Kernel has the tables of this program in one network namespace. Only one goroutine at a time may use it, except for
// the methods that allow more.
type Kernel struct {
	conn *nft.Conn
	// Table is the name of the tables. Set it before the first use.
	Table string
	// Now is the clock for the time at which unused chains are deleted.
	Now func() time.Time
	// ledger belongs to the planner of the last sync; nil before the first sync.
	ledger *ledger
	// known is true if the kernel has exactly the elements and chains that the ledger had at the last sync.
	known bool
	// doubted is true if known was true until [Kernel.Doubt].
	doubted bool
	// generation is the last generation of the ruleset whose commits are all accounted for.
	generation uint32
	// leased is the time of the last renewal of the lease by this process.
	leased time.Time
	// states are the state elements that the kernel has.
	states map[inet.Family]*nft.Element
	// tables are the tables after the last full sync or comparison. elements is the number of their elements.
	tables   []*nft.Table
	elements int
	// atOnce is [mostAtOnce], except in tests.
	atOnce   int
	takeOver takeOver
	others   others
	// readable are the sets with the same form in the tables of an earlier process, so that Recall can read their
	// elements.
	readable map[*nft.Set]bool
	check    check
	counts   Counts
}

// Counts receives the counters of elements before their deletion.
type Counts interface {
	// Await reads the counters of present elements, unless they were read recently. It waits at most for the given
	// time. Kernel calls Await before a batch whose deletions exceed the limit of reports, see [nft.MostReports].
	Await(time.Duration) error
	// Kernel calls Begin before a batch that deletes elements with counters, and End after it, with the counters of the
	// deleted elements. all is true if the batch has replaced every element.
	Begin()
	End(gone []nft.Found, all bool)
	// Kernel calls Adopted after a start has adopted the tables of an earlier process.
	Adopted()
}

// Count makes the kernel report counters to c. Call it before the first sync.
func (k *Kernel) Count(c Counts) { k.counts = c }

// Open opens a connection to nftables in the network namespace of the calling thread. It fails if the process lacks the
// privilege, or the kernel lacks nftables.
func Open() (*Kernel, error) {
	const noTables = "%w: does the kernel have nf_tables (CONFIG_NF_TABLES, module nf_tables)?"
	conn, err := nft.Open()
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, fmt.Errorf(noTables, err)
	case err != nil:
		return nil, err
	}
	if _, err := conn.Generation(); err != nil {
		err = errors.Join(err, conn.Close())
		if errors.Is(err, unix.EPERM) {
			const advice = "add it to the container's securityContext.capabilities"
			return nil, fmt.Errorf("%w: nftables needs the capability NET_ADMIN; %s", err, advice)
		}
		return nil, fmt.Errorf(noTables, err)
	}
	return &Kernel{
		conn: conn, Table: plan.TableName, Now: time.Now, atOnce: mostAtOnce, states: map[inet.Family]*nft.Element{},
		others: others{heard: make(chan struct{}, 1)},
	}, nil
}

// Close closes the connections. The tables stay.
func (k *Kernel) Close() error { return errors.Join(k.others.close(), k.conn.Close()) }

// Known reports whether the kernel's tables are known to match the plan of the last sync.
func (k *Kernel) Known() bool { return k.known }

// Kind is the effect of a sync.
type Kind string

// The kinds of syncs.
const (
	// Nothing: there was no change.
	Nothing Kind = "nothing"
	// Adopted: the tables were unknown, and a comparison found no difference. The sync sent nothing.
	Adopted Kind = "adopted"
	// Partial: the sync sent the changes since the last sync.
	Partial Kind = "partial"
	// Full: the sync sent the complete tables.
	Full Kind = "full"
)

// Result describes a sync and its cost.
type Result struct {
	Kind Kind
	// Elements is the number of added and deleted elements, Bytes the size of the batches. Both are 0 if no batch was
	// sent.
	Elements, Bytes int
	// Commit is the time from sending a batch to the kernel's answer, added up for all batches.
	Commit time.Duration
	// Why is the reason for a full sync.
	Why string
	// Again is the time from which another sync deletes retained elements or chains, or makes a set larger; zero if
	// there is no such work.
	Again time.Time
}

// Sync makes the kernel's tables equal to the plan. If it fails, the kernel has the old tables or the new ones, and the
// next call compares them. After a failed repair in several batches, the tables may lack Services until the next call.
func (k *Kernel) Sync(p *plan.Planner) (Result, error) {
	k.follow(p)
	var result Result
	var err error
	switch {
	case k.known:
		result, err = k.update()
	case k.restoreTrust():
		if result, err = k.update(); result.Kind == Nothing && err == nil {
			result.Kind = Adopted
		}
	default:
		result, err = k.restore()
	}
	if err == nil {
		now := k.Now()
		if result.Again = k.ledger.scheduleRetirement(now); len(k.ledger.toGrow) > 0 {
			result.Again = now
		}
	}
	if k.takeOver.wanted && (err == nil || errors.Is(err, unix.EPERM)) {
		// If a table of kube-proxy has an owner, only the owner may delete it. Such a table must not prevent all syncs.
		// pkg/beside/takeover tries again.
		k.takeOver.settle()
	}
	return result, err
}

// follow makes a new ledger if the planner does not report to the current one, and reports whether it did. With a new
// ledger, the kernel's tables are unknown.
func (k *Kernel) follow(p *plan.Planner) (opened bool) {
	if k.ledger != nil && k.ledger.planner == p {
		return false
	}
	k.ledger = newLedger(p)
	k.known, k.doubted = false, false
	return true
}

// restore compares the unknown tables with the ledger. It then adopts equal tables, and rewrites different tables.
func (k *Kernel) restore() (Result, error) {
	k.doubted = false // untrack drops the changes, so trust cannot be restored later
	k.ledger.untrack()
	first := len(k.states) == 0
	if first {
		k.ledger.forgetRetained() // the kernel never had the elements that the plan removed before the first sync
	}
	generation, err := k.conn.Generation()
	if err != nil {
		return Result{}, err
	}
	why, err := k.compare()
	if err == nil {
		err = k.takeOver.find(k.conn)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read tables: %w", err)
	}
	if why == "" && len(k.takeOver.found) > 0 {
		why = "kube-proxy's tables are deleted"
	}
	// This is the generation before the comparison, so a later check notices foreign commits during the comparison.
	k.reach(generation)
	if why == "" {
		why = k.Touched()
	}
	if why == "" {
		k.markKnown()
		if k.counts != nil && first {
			k.counts.Adopted()
		}
		// No listener heard foreign changes while no process ran. So check the values of all elements.
		k.check.due = k.check.due || first && k.elements <= mostChecked
		return Result{Kind: Adopted}, nil
	}
	k.check.due = k.others.forgive(generation) || k.check.due
	result, err := k.rewrite(why)
	if err == nil {
		k.others.recordRepair(generation)
		k.check.due = false
	}
	return result, err
}

// restoreTrust restores trust in the tables after [Kernel.Doubt], and reports whether it did. It does so if the
// listener heard every foreign commit since the last check, and none of them changed the tables. Then no comparison is
// necessary, and the ledger still has the changes since the last sync. Without restoreTrust, another program with
// frequent commits would cause a comparison for each change of a Service.
func (k *Kernel) restoreTrust() (restored bool) {
	if !k.doubted || k.takeOver.wanted || k.Touched() != "" {
		return false
	}
	generation, err := k.conn.Generation()
	if err != nil || generation == k.generation || !k.others.harmless(k.generation, generation) {
		return false
	}
	k.reach(generation)
	k.known, k.doubted = true, false
	return true
}

// CheckRuleset reports whether another program has changed the ruleset since the last sync, in any table. It takes a
// few microseconds. If the listener may have missed a commit, CheckRuleset starts a check of all elements. A later call
// reports the outcome of this check.
func (k *Kernel) CheckRuleset() (bool, error) {
	generation, err := k.conn.Generation()
	foreign := err == nil && generation != k.generation
	// If there are too many elements for a check, a missed commit causes a full sync. So miss none.
	many := k.elements > mostChecked
	active, missed := k.others.take()
	k.others.tend(k.Now(), active || foreign, many)
	k.check.due = k.check.due || missed
	if err != nil || foreign {
		return foreign, err
	}
	if k.check.due && many {
		k.others.suspect("another program may have changed the tables unnoticed", k.generation)
		k.check.due = false
	}
	if k.check.due || k.check.answer != nil {
		k.verify()
	}
	return k.Touched() != "", nil
}

// reach records that all commits up to a generation are accounted for, and counts the foreign ones.
func (k *Kernel) reach(generation uint32) {
	k.others.countForeign(generation, int(int32(generation-k.generation)))
	k.generation = generation
}

// markKnown records that the kernel's tables equal the ledger.
func (k *Kernel) markKnown() {
	k.tables, k.elements = k.ledger.tables(), 0
	for _, t := range k.tables {
		k.states[t.Family] = k.ledger.state(t.Family)
		for _, s := range t.Sets {
			k.elements += k.ledger.counts[s]
		}
	}
	k.known, k.doubted = true, false
	k.ledger.track()
}

// update sends the changes since the last sync, in one batch. If the constant rules have changed, it rewrites the
// tables.
func (k *Kernel) update() (Result, error) {
	c := k.ledger.take(k.Now())
	if c.empty() {
		return Result{Kind: Nothing}, nil
	}
	if c.rules {
		k.known = false
		k.ledger.untrack()
		return k.rewrite("the rules that recognise local pods have changed")
	}
	b, l := nft.NewBatch(0), k.ledger
	b.Report = k.counts != nil
	for _, name := range c.chains {
		t, chain := k.table(name.family), l.planner.Rules().ClassChain(name.family, name.name)
		b.AddChain(t, chain)
		b.AddRules(t, chain)
	}
	for _, e := range c.forget {
		b.EnsureElement(&e) // kernels before 6.3 have no message to delete an element that may be missing
	}
	var states []*nft.Element
	for f, old := range k.states {
		if s := l.state(f); *s != *old {
			states = append(states, s)
			b.DeleteElement(old)
		}
	}
	for _, name := range c.unused {
		b.FlushRules(k.table(name.family), name.name) // the rules may look up a set that is remade
	}
	for _, s := range c.remade {
		l.remake(b, s)
	}
	for i := range c.elements {
		if e := &c.elements[i].was; e.Set != nil {
			b.DeleteElement(e)
		}
	}
	for _, e := range c.forget {
		b.DeleteElement(&e)
	}
	for i := range c.elements {
		if e := &c.elements[i].is; e.Set != nil {
			b.AddElement(e)
		}
	}
	for _, s := range states {
		b.AddElement(s)
	}
	for _, name := range c.unused {
		b.DeleteChain(k.table(name.family), name.name)
		if l.timeouts(name) != (nft.Timeouts{}) {
			b.DeleteTimeouts(k.table(name.family), name.name)
		}
	}
	result, err := k.sendBatch(b, Partial)
	if err != nil {
		return result, err
	}
	for _, s := range states {
		k.states[s.Set.Family] = s
	}
	return result, nil
}

// table returns a family's table, with its name only.
func (k *Kernel) table(f inet.Family) *nft.Table { return &nft.Table{Family: f, Name: k.Table} }

// patienceForCounts is the longest time that a batch waits for the reading of counters.
const patienceForCounts = 200 * time.Millisecond

// sendBatch sends a batch, and passes the counters of the deleted elements to [Counts]. After an error, the tables are
// unknown.
func (k *Kernel) sendBatch(b *nft.Batch, kind Kind) (Result, error) {
	known := k.known // false during a rewrite: rewrite sets k.known after its last batch
	k.known, k.doubted = false, false
	start := time.Now()
	counted := k.counts != nil && (kind == Full || b.Reports > 0)
	if counted {
		if b.Reports > nft.MostReports {
			_ = k.counts.Await(patienceForCounts) // counters that could not be read are lost: the batch must not wait
		}
		k.counts.Begin()
	}
	err := k.commit(b)
	if counted {
		k.counts.End(b.Gone, kind == Full && err == nil)
	}
	r := Result{Kind: kind, Commit: time.Since(start)}
	if r.Elements, r.Bytes = b.Elements, len(b.Buf); err != nil {
		return r, fmt.Errorf("%s sync of %d elements: %w", kind, r.Elements, err)
	}
	k.known = known
	return r, nil
}

// commit commits a batch and advances the generation. Meanwhile, the listener is not in the kernel's group, so that
// only the ruleset's generation shows foreign commits.
func (k *Kernel) commit(b *nft.Batch) error {
	if o := &k.others; o.joined {
		if err := o.listener.Leave(); err != nil {
			_ = o.listener.Close() // an open listener would count this commit as a foreign commit
		}
		defer o.join() // if this fails, the loop notices foreign commits up to half a second later
	}
	err := k.conn.Commit(b)
	if err == nil {
		// This is the generation after this batch. If a foreign commit preceded the batch, CheckRuleset notices the
		// difference.
		k.generation++
	}
	return err
}

// Cleanup deletes the tables of the instance with a service-proxy name, and returns their names. The default instance
// has the empty name. Missing tables are not an error.
func Cleanup(serviceProxyName string) (deleted []string, err error) {
	return nft.DeleteTables(plan.Table(serviceProxyName))
}

// Doubt makes the next sync compare the tables with the plan, as at the start.
func (k *Kernel) Doubt() {
	k.doubted = k.doubted || k.known
	k.known = false
}
