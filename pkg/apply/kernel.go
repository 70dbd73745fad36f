package apply

import (
	"errors"
	"fmt"

	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Kernel is the nftables of one network namespace, as far as it is ours. It must not be used by two goroutines at once.
type Kernel struct {
	conn *nft.Conn
	// known says that the kernel holds what the planner had when it was last asked.
	known bool
	// doubted says that it was known until somebody doubted it.
	doubted bool
	// generation is that of the kernel's ruleset as it was left by us, or read before it was found to be ours; renewed is how many
	// renewals of the lease it counts. Those that came later aren't foreign.
	generation, renewed uint32
	renewals            renewals
	// states are the state elements that the kernel holds.
	states map[nft.Family]*nft.Element
	// tables are what was wanted when all was last written or compared, and elements how many.
	tables   []*nft.Table
	elements int
	// atOnce is [mostAtOnce].
	atOnce int
	// difference is the batch of the last differences that were sent; its memory serves again.
	difference *nft.Batch
	takeOver   takeOver
	others     others
	// readable are the sets of an earlier process's tables that can be read.
	readable map[*nft.Set]bool
	check    check
	counts   Counts
}

// Counts takes what elements have counted before they go.
type Counts interface {
	// Await reads what present elements have counted, unless that was done lately, and waits no longer than a time. It comes before a
	// batch whose deletions are too many for the kernel to report.
	Await(time.Duration) error
	// Begin comes before a batch that deletes elements with counters, End after it, with what was counted by those that went; all
	// says that every element was made anew.
	Begin()
	End(gone []nft.Counted, all bool)
	// Adopted comes when the tables of an earlier process have been found to be as wanted.
	Adopted()
}

// Count makes it tell what elements have counted. It is to be called before the first sync, or not at all.
func (k *Kernel) Count(c Counts) { k.counts = c }

// Open opens the network namespace of the calling thread. It fails where this process may not use nftables, or the kernel
// has none.
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
			return nil, fmt.Errorf("%w: nftables needs the capability NET_ADMIN; add it to the container's securityContext.capabilities", err)
		}
		return nil, fmt.Errorf(noTables, err)
	}
	return &Kernel{
		conn: conn, atOnce: mostAtOnce, states: map[nft.Family]*nft.Element{}, difference: nft.NewBatch(0), others: others{heard: make(chan struct{}, 1)},
	}, nil
}

// Close closes the connection; the tables stay.
func (k *Kernel) Close() error { return errors.Join(k.others.close(), k.conn.Close()) }

// Known reports whether what the kernel holds is known.
func (k *Kernel) Known() bool { return k.known }

// Kind says what a sync did.
type Kind string

// What a sync can do.
const (
	// Nothing was to be done.
	Nothing Kind = "nothing"
	// Adopted: the tables of an earlier process were found to be just as wanted. Nothing was sent.
	Adopted Kind = "adopted"
	// Partial: the differences were sent.
	Partial Kind = "partial"
	// Full: everything was sent.
	Full Kind = "full"
)

// Result is what a sync did and what it took.
type Result struct {
	Kind Kind
	// Elements counts those added and deleted, Bytes is the size of the batch; both are 0 if none was sent.
	Elements, Bytes int
	// Commit is the time from sending the batch to the kernel's answer.
	Commit time.Duration
	// Why tells, after a full sync, why the tables had to be written anew.
	Why string
}

// Sync brings the tables to what the planner wants. After an error nothing has changed, or it isn't known what has: the
// next call finds out. In both cases packets meet either the old tables or the new ones.
func (k *Kernel) Sync(p *plan.Planner) (Result, error) {
	result, err := k.sync(p)
	if err == nil || errors.Is(err, unix.EPERM) {
		// A table that its owner lets nobody delete must not keep ours away; pkg/takeover goes on trying.
		k.takeOver.settle()
	}
	return result, err
}

func (k *Kernel) sync(p *plan.Planner) (Result, error) {
	if k.known {
		return k.update(p)
	}
	if k.harmless() {
		result, err := k.update(p)
		if result.Kind == Nothing && err == nil {
			result.Kind = Adopted
		}
		return result, err
	}
	k.doubted = false // what has changed since isn't known as a difference from here on
	p.Untrack()
	if len(k.states) == 0 {
		// What came and went while the first plan was made has never been in the kernel.
		p.Prune()
	}
	now, err := k.now()
	if err != nil {
		return Result{}, err
	}
	first := len(k.states) == 0
	why, err := k.compare(p)
	if err == nil {
		err = k.takeOver.find(k.conn)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read tables: %w", err)
	}
	if why == "" && len(k.takeOver.found) > 0 {
		why = "kube-proxy's tables are deleted"
	}
	// Whatever is committed by others from here on is noticed.
	k.others.counted(now.generation, k.foreign(now))
	k.reach(now)
	if why == "" {
		why = k.others.suspicion()
	}
	if why == "" {
		// Nobody has listened while there was no process.
		k.remember(p)
		if k.counts != nil && first {
			k.counts.Adopted()
		}
		k.check.due = k.check.due || first && k.elements <= readable
		return Result{Kind: Adopted}, nil
	}
	result, err := k.rewrite(p, why)
	if err == nil {
		k.others.settled(now.generation)
		k.check.due = false
	}
	return result, err
}

// harmless ends a doubt where all that others have committed since was heard of, and none of it in our tables: there is nothing to
// compare then, and what is to be changed is a difference still. Otherwise who changes the ruleset all the time would have
// everything written anew with every change of a Service.
func (k *Kernel) harmless() bool {
	if !k.doubted || k.takeOver.wanted || k.others.suspicion() != "" {
		return false
	}
	now, err := k.now()
	if err != nil || k.foreign(now) == 0 || !k.others.harmless(k.generation, now.generation) {
		return false
	}
	k.others.counted(now.generation, k.foreign(now))
	k.reach(now)
	k.known, k.doubted = true, false
	return true
}

// Meddled reports whether somebody else has changed the kernel's ruleset since the last sync: some table, not necessarily
// ours. It costs a few microseconds. Where something may have been changed unheard of, it has all elements read beside, and reports
// later what came of it.
func (k *Kernel) Meddled() (bool, error) {
	k.others.revive()
	now, err := k.now()
	if err != nil || k.foreign(now) != 0 {
		return err == nil, err
	}
	k.reach(now)
	k.verify()
	return k.others.suspicion() != "", nil
}

// remember notes that the kernel holds what the planner wants.
func (k *Kernel) remember(p *plan.Planner) {
	k.tables, k.elements = p.Tables(), 0
	for _, t := range k.tables {
		k.states[t.Family] = p.State(t.Family)
		for _, s := range t.Sets {
			k.elements += p.Count(s)
		}
	}
	k.known, k.doubted = true, false
	p.Track()
}

// update sends what has changed.
func (k *Kernel) update(p *plan.Planner) (Result, error) {
	c := p.Take()
	if c.Empty() {
		return Result{Kind: Nothing}, nil
	}
	if c.Rules {
		k.known = false
		p.Untrack()
		return k.rewrite(p, "the rules that recognise local pods have changed")
	}
	b := k.reuse()
	b.Report = k.counts != nil
	for _, ch := range c.Chains {
		t := table(ch.Family)
		b.AddChain(t, ch.Chain)
		b.AddRules(t, ch.Chain)
	}
	for i := range c.Forget {
		b.EnsureElement(&c.Forget[i]) // kernels before 6.3 have no message for what may not be there
	}
	var states []*nft.Element
	for f, old := range k.states {
		if s := p.State(f); *s != *old {
			states = append(states, s)
			b.DeleteElement(old)
		}
	}
	for i := range c.Remade {
		remake(b, &c.Remade[i])
	}
	for _, e := range c.Delete {
		b.DeleteElement(e)
	}
	for i := range c.Forget {
		b.DeleteElement(&c.Forget[i])
	}
	for _, e := range c.Add {
		b.AddElement(e)
	}
	for _, s := range states {
		b.AddElement(s)
	}
	for _, ch := range c.Unused {
		t := table(ch.Family)
		b.FlushRules(t, ch.Name)
		b.DeleteChain(t, ch.Name)
	}
	result, err := k.commit(b, Partial)
	if err != nil {
		return result, err
	}
	for _, s := range states {
		k.states[s.Set.Family] = s
	}
	return result, nil
}

// remake deletes a set, and adds it again.
func remake(b *nft.Batch, r *plan.Remade) {
	for _, c := range r.Chains {
		b.FlushRules(table(c.Family), c.Name)
	}
	if r.Set.Counter {
		b.FlushSet(r.Set, len(r.Elements)) // so that the kernel reports the counters
	}
	b.DeleteSet(r.Set.Family, r.Set.Table, r.Set.Name)
	b.AddSet(r.Set)
	for _, c := range r.Chains {
		b.AddRules(table(c.Family), c.Chain)
	}
	for i := range r.Elements {
		b.AddElement(&r.Elements[i])
	}
}

// reuse returns an empty batch in the memory of the last one, unless that was large.
func (k *Kernel) reuse() *nft.Batch {
	const large = 256 << 10
	if k.difference.Len() > large {
		k.difference = nft.NewBatch(0)
	}
	k.difference.Reset()
	return k.difference
}

// table names a family's table.
func table(f model.Family) *nft.Table {
	return &nft.Table{Family: plan.NFT(f), Name: plan.TableName}
}

func (k *Kernel) commit(b *nft.Batch, kind Kind) (Result, error) {
	k.known, k.doubted = false, false
	start := time.Now()
	err := k.others.deafly(func() error { return k.send(b, kind) })
	r := Result{Kind: kind, Elements: b.Elements(), Bytes: b.Len(), Commit: time.Since(start)}
	if err != nil {
		return r, fmt.Errorf("%s sync of %d elements: %w", kind, b.Elements(), err)
	}
	k.known = true
	// The generation that this batch made, if nobody else has come between: otherwise Meddled sees a difference.
	k.generation++
	if kind == Full {
		k.renewals.last.Store(start.UnixNano())
	}
	return r, nil
}

// patienceForCounts is how long a batch waits for the counters of what it deletes to be read.
const patienceForCounts = 200 * time.Millisecond

// send sends a batch, and passes on what the elements that it deletes have counted.
func (k *Kernel) send(b *nft.Batch, kind Kind) error {
	if k.counts == nil || kind == Partial && !b.Reports() {
		return k.conn.Commit(b)
	}
	if b.TooMany() {
		_ = k.counts.Await(patienceForCounts) // what couldn't be read isn't counted: the batch must not wait
	}
	k.counts.Begin()
	err := k.conn.Commit(b)
	k.counts.End(b.Gone(), kind == Full && err == nil)
	return err
}

// Cleanup deletes our tables and nothing else, and returns which there were. That there are none is not an error.
func Cleanup() (deleted []string, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var errs []error
	for _, f := range model.Families {
		found, err := conn.DeleteTable(plan.NFT(f), plan.TableName)
		errs = append(errs, err)
		if found {
			deleted = append(deleted, fmt.Sprintf("%s %s", plan.NFT(f), plan.TableName))
		}
	}
	return deleted, errors.Join(errs...)
}

// Doubt makes the next sync compare the tables with what is wanted, as at the start.
func (k *Kernel) Doubt() {
	k.doubted = k.doubted || k.known
	k.known = false
}
