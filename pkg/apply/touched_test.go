package apply

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// altered has changes that a start does not find, because it compares only numbers of elements and comments of rules. why is the listener's report of
// the change.
var altered = map[string]struct{ command, why string }{
	"a value":         {"delete element ip kube-nftproxy services { 10.96.0.2 . tcp . 80 }; add element ip kube-nftproxy services { 10.96.0.2 . tcp . 80 : 8000:2001 }", "ip delete elements from services"},
	"an endpoint":     {"delete element ip6 kube-nftproxy endpoints { tcp . 8000:2000 . 0 }; add element ip6 kube-nftproxy endpoints { tcp . 8000:2000 . 0 : 2001:db8::1 . 80 }", "ip6 delete elements from endpoints"},
	"a verdict":       {"delete element ip kube-nftproxy dispatch { %s }; add element ip kube-nftproxy dispatch { %s : goto reject-packet }", "ip delete elements from dispatch"},
	"another element": {"delete element ip kube-nftproxy cluster-ips { 10.96.0.2 }; add element ip kube-nftproxy cluster-ips { 10.96.0.200 }", "ip delete elements from cluster-ips"},
	"a range":         {"delete element ip kube-nftproxy service-cidrs { 10.96.0.0/16 }; add element ip kube-nftproxy service-cidrs { 10.96.0.0/17 }", "ip delete elements from service-cidrs"},
	"the lease":       {"flush set ip kube-nftproxy lease", "ip delete elements from lease"},
}

// alter makes a foreign change with nft. In the command, %s stands for the class whose element leads to the chain endpoints-of-4.
func alter(t *testing.T, command string) {
	t.Helper()
	if n := strings.Count(command, "%s"); n > 0 {
		list := run(t, "nft", "list map ip kube-nftproxy dispatch")
		before, _, _ := strings.Cut(list, " : goto endpoints-of-4")
		command = strings.ReplaceAll(command, "%s", before[strings.LastIndexAny(before, " \t{")+1:])
	}
	run(t, "nft", command)
}

// awaitForeignChange waits until CheckRuleset finds a change.
func awaitForeignChange(t *testing.T, k *Kernel) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if yes, err := k.CheckRuleset(); err != nil || yes {
			lab.Must(t, err)
			return
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("CheckRuleset found no change")
		}
	}
}

// TestForeignChangesAreRewritten: the listener hears changed values and replaced objects, and a full sync repairs them.
func TestForeignChangesAreRewritten(t *testing.T) {
	for name, c := range altered {
		t.Run(name, func(t *testing.T) {
			k, p := listening(t)
			alter(t, c.command)
			heard(t, k)
			k.Doubt()
			r := mustSync(t, k, p, Full)
			lab.Same(t, "another program has changed the tables: "+c.why, r.Why, "because")
			checkKernel(t, k, p)
			settled(t, k, p)
		})
	}
}

func TestARuleWithTheSameCommentIsNoticed(t *testing.T) {
	k, p := listening(t)
	before := run(t, "nft", "-s", "list chain ip kube-nftproxy endpoints-of-4")
	replaceRule(t, "accept")
	heard(t, k)
	k.Doubt()
	if r := mustSync(t, k, p, Full); !strings.Contains(r.Why, "of endpoints-of-4") {
		t.Errorf("because %q, want the rule and its chain", r.Why)
	}
	if after := run(t, "nft", "-s", "list chain ip kube-nftproxy endpoints-of-4"); after != before {
		t.Errorf("the chain is\n%s\nwas\n%s", after, before)
	}
	settled(t, k, p)
	run(t, "nft", "add table ip foreign") // a harmless change after the repaired one
	heard(t, k)
	k.Doubt()
	mustSync(t, k, p, Adopted)
}

// replaceRule replaces the rule of the chain endpoints-of-4 with another rule that has the same comment.
func replaceRule(t *testing.T, rule string) {
	t.Helper()
	var handle, comment string
	for line := range strings.Lines(run(t, "nft", "-a", "list chain ip kube-nftproxy endpoints-of-4")) {
		if rule, number, _ := strings.Cut(line, " # handle "); strings.Contains(rule, " comment ") {
			handle = strings.TrimSpace(number)
			_, comment, _ = strings.Cut(rule, " comment ")
		}
	}
	run(t, "nft", fmt.Sprintf("replace rule ip kube-nftproxy endpoints-of-4 handle %s %s comment %s", handle, rule, comment))
}

// unheard runs f while the listener is not in the kernel's group. It fails unless the next sync adopts the tables, and CheckRuleset later finds a change.
// elements is the number of elements in the tables that the Kernel assumes; 0 for the real number.
func unheard(t *testing.T, k *Kernel, p *plan.Planner, elements int, f func()) {
	t.Helper()
	withoutListening(t, k, f)
	k.Doubt()
	mustSync(t, k, p, Adopted)
	k.elements = cmp.Or(elements, k.elements)
	awaitForeignChange(t, k)
	k.Doubt()
}

// TestAMissedReplacementOfARuleIsRepaired: while the listener is not in the kernel's group, another rule with the same comment replaces a rule. A check finds it.
func TestAMissedReplacementOfARuleIsRepaired(t *testing.T) {
	for name, rule := range map[string]string{"another rule": "accept", "another number": "meta priority set 0:1 accept"} {
		t.Run(name, func(t *testing.T) {
			k, p := listening(t)
			unheard(t, k, p, 0, func() { replaceRule(t, rule) })
			if r := mustSync(t, k, p, Full); !strings.Contains(r.Why, "the rules of chain endpoints-of-4 differ from the plan") {
				t.Errorf("because %q", r.Why)
			}
			settled(t, k, p)
		})
	}
}

// TestHarmlessForeignChanges: changes of other tables and of remembered clients cause no full sync.
func TestHarmlessForeignChanges(t *testing.T) {
	for name, command := range map[string]string{
		"a table of another program": "add table ip foreign; add chain ip foreign c; add rule ip foreign c accept",
		"a remembered client":        "add element ip kube-nftproxy affinity { d47c:0 . 192.0.2.1 : d47c:1 }",
		"another family":             "add table inet kube-nftproxy; add set inet kube-nftproxy s { type ipv4_addr; }",
		"a longer name":              "add table ip kube-nftproxy-2; add set ip kube-nftproxy-2 services { type ipv4_addr; }",
	} {
		t.Run(name, func(t *testing.T) {
			k, p := listening(t)
			run(t, "nft", command)
			heard(t, k)
			k.Doubt()
			mustSync(t, k, p, Adopted)
			settled(t, k, p)
		})
	}
}

// TestATouchAmongMany: the listener notices one change of the tables among many changes of other tables in one transaction, regardless of the number of
// messages.
func TestATouchAmongMany(t *testing.T) {
	for _, n := range []int{1, 7, 40, 64, 65, 90, 1000, 20000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			k, p := listening(t)
			fill := func(b *strings.Builder, table string) {
				fmt.Fprintf(b, "table ip %s { set s { type ipv4_addr; elements = { 10.0.0.0", table)
				for i := 1; i < n; i++ {
					fmt.Fprintf(b, ", 10.0.%d.%d", i>>8, i&255)
				}
				b.WriteString(" }; }; }\n")
			}
			var text strings.Builder
			fill(&text, "before")
			text.WriteString(strings.ReplaceAll(altered["a value"].command, "; ", "\n") + "\n")
			fill(&text, "after")
			file := t.TempDir() + "/much.nft"
			lab.Must(t, os.WriteFile(file, []byte(text.String()), 0o600))
			run(t, "nft", "-f", file)
			heard(t, k)
			k.Doubt()
			if r := mustSync(t, k, p, Full); !strings.Contains(r.Why, "elements") || !strings.Contains(r.Why, "services") {
				t.Errorf("because %q, want elements of services", r.Why)
			}
			settled(t, k, p)
		})
	}
}

// TestChangesDuringADowntimeAreRepaired: after a start, a check of all elements finds changes from before the start.
func TestChangesDuringADowntimeAreRepaired(t *testing.T) {
	for name, c := range altered {
		t.Run(name, func(t *testing.T) {
			first, _ := synced(t)
			lab.Must(t, first.Close())
			alter(t, c.command)
			k := open(t)
			p := resume(t, k, options(), services())
			cluster(p)
			if r, err := k.Sync(p); err != nil || r.Kind == Full {
				t.Fatalf("%v because %q, %v: a start must not find the change", r.Kind, r.Why, err)
			}
			awaitForeignChange(t, k)
			k.Doubt()
			if r := mustSync(t, k, p, Full); !strings.Contains(r.Why, "its elements differ from the plan") {
				t.Errorf("because %q", r.Why)
			}
			checkKernel(t, k, p)
			settled(t, k, p)
		})
	}
}

// TestManyElementsAreRewrittenWithoutACheck: above the limit of readable elements, a full sync replaces the check, because it takes less time.
func TestManyElementsAreRewrittenWithoutACheck(t *testing.T) {
	k, p := listening(t)
	unheard(t, k, p, mostChecked+1, func() { run(t, "nft", altered["a value"].command) })
	if r := mustSync(t, k, p, Full); !strings.Contains(r.Why, "unnoticed") {
		t.Errorf("because %q", r.Why)
	}
	checkKernel(t, k, p)
}

// TestARepairCoversWhatTheListenerMissed: a flush of many elements overruns the listener's queue. After the repair, no
// second full sync follows, but a commit that the listener misses later still causes one.
func TestARepairCoversWhatTheListenerMissed(t *testing.T) {
	k, p := listening(t)
	run(t, "nft", "flush ruleset")
	heard(t, k)
	k.others.note(&nft.Commit{Lost: true}, "")
	awaitForeignChange(t, k)
	late := nft.Commit{Generation: k.generation + 1} // announced before the repair, and received after it
	k.others.note(&nft.Commit{Lost: true}, "")
	k.Doubt()
	mustSync(t, k, p, Full)
	k.elements = mostChecked + 1
	k.others.note(&late, "")
	if yes, err := k.CheckRuleset(); err != nil || yes {
		t.Errorf("CheckRuleset() = %v, %v after a repair: %s", yes, err, k.Touched())
	}
	unheard(t, k, p, mostChecked+1, func() { run(t, "nft", altered["a value"].command) })
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
}

// TestACommitDuringARepairIsNotMissed: the listener hears a foreign commit between the comparison and the full sync.
func TestACommitDuringARepairIsNotMissed(t *testing.T) {
	o := others{listener: &nft.Listener{}}
	o.countForeign(5, 0)
	o.countForeign(6, 1)
	lab.Same(t, true, o.forgive(6), "the listener missed a commit before the comparison")
	o.note(&nft.Commit{Generation: 7}, "")
	o.recordRepair(6)
	o.countForeign(8, 1)
	_, missed := o.take()
	lab.Same(t, false, missed, "it missed a commit after it")
}

// TestAChangeDuringACommitIsRepaired: a check of all elements finds a change that the listener missed during a commit of this process.
func TestAChangeDuringACommitIsRepaired(t *testing.T) {
	k, p := listening(t)
	unheard(t, k, p, 0, func() { run(t, "nft", altered["a value"].command) })
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
}

// TestFailedChecksCauseAFullSync: while the ruleset keeps changing, checks fail. After patienceOfCheck of them, a full sync follows.
func TestFailedChecksCauseAFullSync(t *testing.T) {
	k, p := listening(t)
	for range patienceOfCheck {
		k.verify()
		k.check.due = true
		k.check.answer = make(chan outcome, 1)
		k.check.answer <- outcome{generation: k.generation, err: nft.ErrChanged}
		if why := k.Touched(); why != "" {
			t.Fatalf("too early: %s", why)
		}
		k.verify()
	}
	awaitForeignChange(t, k)
	k.Doubt()
	mustSync(t, k, p, Full)
	run(t, "nft", "add table ip foreign")
	heard(t, k)
	if k.finishCheck(outcome{generation: k.generation, now: k.generation + 1}); k.check.due || k.check.failures > 0 {
		t.Error("a check failed because of a harmless change")
	}
}

// listening returns a Kernel with a listener after its first sync, and its planner.
func listening(t *testing.T) (*Kernel, *plan.Planner) {
	t.Helper()
	k, p := synced(t)
	listen(t, k)
	return k, p
}

// settled fails unless a check of all elements finds no difference, and no sync is necessary.
func settled(t *testing.T, k *Kernel, p *plan.Planner) {
	t.Helper()
	k.check.due = true
	for begin := time.Now(); k.check.due || k.check.answer != nil; time.Sleep(time.Millisecond) {
		if yes, err := k.CheckRuleset(); err != nil || yes {
			t.Fatalf("CheckRuleset() = %v, %v after a repair: %s", yes, err, k.Touched())
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("a check took too long")
		}
	}
	mustSync(t, k, p, Nothing)
}

// BenchmarkVerify measures a check of all elements.
func BenchmarkVerify(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10000, 10}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			lab.EnterNamespace(b)
			k, p := open(b), plan.New(options())
			fill(p, size.services, size.endpoints)
			mustSync(b, k, p, Full)
			b.ReportAllocs()
			for b.Loop() {
				if wrong, _, err := findDifference(k.conn, k.states, k.tables); wrong != "" || err != nil {
					b.Fatal(wrong, err)
				}
			}
		})
	}
}
