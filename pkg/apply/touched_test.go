package apply

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// altered has changes that a start does not find: it compares numbers of elements and comments of rules.
var altered = map[string]struct{ meddle, why string }{
	"a value":         {"delete element ip kube-nftproxy services { 10.96.0.2 . tcp . 80 }; add element ip kube-nftproxy services { 10.96.0.2 . tcp . 80 : 8000:2001 }", "elements"},
	"an endpoint":     {"delete element ip6 kube-nftproxy endpoints { tcp . 8000:2000 . 0 }; add element ip6 kube-nftproxy endpoints { tcp . 8000:2000 . 0 : 2001:db8::1 . 80 }", "elements"},
	"a verdict":       {"delete element ip kube-nftproxy dispatch { %s }; add element ip kube-nftproxy dispatch { %s : goto reject-packet }", "elements"},
	"another element": {"delete element ip kube-nftproxy cluster-ips { 10.96.0.2 }; add element ip kube-nftproxy cluster-ips { 10.96.0.200 }", "elements"},
	"a range":         {"delete element ip kube-nftproxy service-cidrs { 10.96.0.0/16 }; add element ip kube-nftproxy service-cidrs { 10.96.0.0/17 }", "elements"},
	"the lease":       {"flush set ip kube-nftproxy lease", "elements"},
}

// meddle makes such a change with nft. Some changes refer to the chain of an existing element.
func meddle(t *testing.T, command string) {
	t.Helper()
	if n := strings.Count(command, "%s"); n > 0 {
		list := run(t, "nft", "list map ip kube-nftproxy dispatch")
		before, _, _ := strings.Cut(list, " : goto endpoints-of-4")
		command = strings.ReplaceAll(command, "%s", before[strings.LastIndexAny(before, " \t{")+1:])
	}
	run(t, "nft", command)
}

// meddled waits until CheckRuleset finds a change.
func meddled(t *testing.T, k *Kernel) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		if yes, err := k.CheckRuleset(); err != nil || yes {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("CheckRuleset found no change")
		}
	}
}

// TestForeignChangesAreRewritten: the listener hears of changed values and replaced objects, and a full sync repairs them.
func TestForeignChangesAreRewritten(t *testing.T) {
	for name, c := range altered {
		t.Run(name, func(t *testing.T) {
			k, p := listening(t)
			meddle(t, c.meddle)
			heard(t, k)
			k.Doubt()
			r := sync(t, k, p, Full)
			if want := "another program has changed the tables: ip"; !strings.HasPrefix(r.Why, want) && !strings.Contains(r.Why, "has") {
				t.Errorf("because %q, want one that begins with %q", r.Why, want)
			}
			checkKernel(t, k, p)
			settled(t, k, p)
		})
	}
}

func TestARuleWithTheSameCommentIsNoticed(t *testing.T) {
	k, p := listening(t)
	before := run(t, "nft", "-s", "list chain ip kube-nftproxy endpoints-of-4")
	var number, comment string
	for line := range strings.Lines(run(t, "nft", "-a", "list chain ip kube-nftproxy endpoints-of-4")) {
		if rule, handle, _ := strings.Cut(line, " # handle "); strings.Contains(rule, " comment ") {
			number = strings.TrimSpace(handle)
			_, comment, _ = strings.Cut(rule, " comment ")
		}
	}
	run(t, "nft", fmt.Sprintf("replace rule ip kube-nftproxy endpoints-of-4 handle %s accept comment %s", number, comment))
	heard(t, k)
	k.Doubt()
	if r := sync(t, k, p, Full); !strings.Contains(r.Why, "of endpoints-of-4") {
		t.Errorf("because %q, want the rule and its chain", r.Why)
	}
	if after := run(t, "nft", "-s", "list chain ip kube-nftproxy endpoints-of-4"); after != before {
		t.Errorf("the chain is\n%s\nwas\n%s", after, before)
	}
	settled(t, k, p)
}

// TestARuleThatWasReplacedUnheardOf: while the listener is not in the kernel's group, another rule with the same comment replaces a rule. A check finds it.
func TestARuleThatWasReplacedUnheardOf(t *testing.T) {
	for name, rule := range map[string]string{"another rule": "accept", "another number": "meta priority set 0:1 accept"} {
		t.Run(name, func(t *testing.T) {
			k, p := listening(t)
			handle, comment := "", ""
			for line := range strings.Lines(run(t, "nft", "-a", "list chain ip kube-nftproxy endpoints-of-4")) {
				if rule, number, _ := strings.Cut(line, " # handle "); strings.Contains(rule, " comment ") {
					handle = strings.TrimSpace(number)
					_, comment, _ = strings.Cut(rule, " comment ")
				}
			}
			err := k.others.deafly(func() error {
				run(t, "nft", fmt.Sprintf("replace rule ip kube-nftproxy endpoints-of-4 handle %s %s comment %s", handle, rule, comment))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			k.Doubt()
			sync(t, k, p, Adopted)
			meddled(t, k)
			k.Doubt()
			if r := sync(t, k, p, Full); !strings.Contains(r.Why, "the rules of chain endpoints-of-4 differ from the plan") {
				t.Errorf("because %q", r.Why)
			}
			settled(t, k, p)
		})
	}
}

// TestWhatOthersMayDo: changes of other tables and of remembered clients cause no full sync.
func TestWhatOthersMayDo(t *testing.T) {
	for name, command := range map[string]string{
		"a table of another program": "add table ip somebody; add chain ip somebody c; add rule ip somebody c accept",
		"a remembered client":        "add element ip kube-nftproxy affinity { d47c:0 . 192.0.2.1 : d47c:1 }",
		"another family":             "add table inet kube-nftproxy; add set inet kube-nftproxy s { type ipv4_addr; }",
		"a longer name":              "add table ip kube-nftproxy-2; add set ip kube-nftproxy-2 services { type ipv4_addr; }",
	} {
		t.Run(name, func(t *testing.T) {
			k, p := listening(t)
			run(t, "nft", command)
			heard(t, k)
			k.Doubt()
			sync(t, k, p, Adopted)
			settled(t, k, p)
		})
	}
}

// TestATouchAmongMany: the listener notices one change of the tables among many changes of other tables in one transaction, in however many messages the
// kernel announces it.
func TestATouchAmongMany(t *testing.T) {
	for _, n := range []int{1, 7, 40, 64, 65, 90, 1000, 20000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			k, p := listening(t)
			theirs := func(b *strings.Builder, table string) {
				fmt.Fprintf(b, "table ip %s { set s { type ipv4_addr; elements = { 10.0.0.0", table)
				for i := 1; i < n; i++ {
					fmt.Fprintf(b, ", 10.0.%d.%d", i>>8, i&255)
				}
				b.WriteString(" }; }; }\n")
			}
			var text strings.Builder
			theirs(&text, "before")
			text.WriteString(strings.ReplaceAll(altered["a value"].meddle, "; ", "\n") + "\n")
			theirs(&text, "behind")
			file := t.TempDir() + "/much.nft"
			if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, "nft", "-f", file)
			heard(t, k)
			k.Doubt()
			if r := sync(t, k, p, Full); !strings.Contains(r.Why, "elements") || !strings.Contains(r.Why, "services") {
				t.Errorf("because %q, want elements of services", r.Why)
			}
			settled(t, k, p)
		})
	}
}

// TestWhatWasAlteredUnheardOf: after a start, a check of all elements finds changes from before the start.
func TestWhatWasAlteredUnheardOf(t *testing.T) {
	for name, c := range altered {
		t.Run(name, func(t *testing.T) {
			first, _ := synced(t)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			meddle(t, c.meddle)
			k := open(t)
			p := resume(t, k, options(), services())
			cluster(p)
			if r, err := k.Sync(p); err != nil || r.Kind == Full {
				t.Fatalf("%v because %q, %v: a start must not find the change", r.Kind, r.Why, err)
			}
			meddled(t, k)
			k.Doubt()
			if r := sync(t, k, p, Full); !strings.Contains(r.Why, "its elements differ from the plan") {
				t.Errorf("because %q", r.Why)
			}
			checkKernel(t, k, p)
			settled(t, k, p)
		})
	}
}

// TestWhatWasMissedAmongVeryMany: above the limit of readable elements, a full sync replaces the check, because it takes less time.
func TestWhatWasMissedAmongVeryMany(t *testing.T) {
	k, p := listening(t)
	err := k.others.deafly(func() error {
		run(t, "nft", altered["a value"].meddle)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.Doubt()
	sync(t, k, p, Adopted)
	k.elements = readable + 1
	meddled(t, k)
	k.Doubt()
	if r := sync(t, k, p, Full); !strings.Contains(r.Why, "unnoticed") {
		t.Errorf("because %q", r.Why)
	}
	checkKernel(t, k, p)
}

// TestWhatWasAlteredWhileDeaf: a check of all elements finds a change that the listener missed during a commit of this process.
func TestWhatWasAlteredWhileDeaf(t *testing.T) {
	k, p := listening(t)
	err := k.others.deafly(func() error {
		run(t, "nft", altered["a value"].meddle)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.Doubt()
	sync(t, k, p, Adopted)
	meddled(t, k)
	k.Doubt()
	sync(t, k, p, Full)
	checkKernel(t, k, p)
}

// TestReadingComesToNoEnd: while the ruleset keeps changing, checks have no outcome. After some of them, a full sync follows.
func TestReadingComesToNoEnd(t *testing.T) {
	k, p := listening(t)
	for range patienceOfCheck {
		k.verify()
		k.check.due = true
		k.check.answer = make(chan outcome, 1)
		k.check.answer <- outcome{generation: k.generation, err: errors.New("the ruleset has changed meanwhile")}
		if why := k.others.suspicion(); why != "" {
			t.Fatalf("too early: %s", why)
		}
		k.verify()
	}
	meddled(t, k)
	k.Doubt()
	sync(t, k, p, Full)
}

// listening returns a Kernel with a listener after its first sync, and its planner.
func listening(t *testing.T) (*Kernel, *plan.Planner) {
	t.Helper()
	k, p := synced(t)
	if err := k.Listen(); err != nil {
		t.Fatal(err)
	}
	return k, p
}

// settled fails unless a check of all elements finds no difference, and no sync is necessary.
func settled(t *testing.T, k *Kernel, p *plan.Planner) {
	t.Helper()
	k.check.due = true
	for begin := time.Now(); k.check.due || k.check.answer != nil; time.Sleep(time.Millisecond) {
		if yes, err := k.CheckRuleset(); err != nil || yes {
			t.Fatalf("CheckRuleset() = %v, %v after a repair: %s", yes, err, k.others.suspicion())
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("a check took too long")
		}
	}
	sync(t, k, p, Nothing)
}

// BenchmarkVerify measures a check of all elements.
func BenchmarkVerify(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1000, 10}, {10000, 10}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			lab.EnterNamespace(b)
			k, p := open(b), plan.New(options())
			fill(p, size.services, size.endpoints)
			sync(b, k, p, Full)
			var states []*nft.Element
			for _, f := range inet.Families {
				states = append(states, k.states[f])
			}
			b.ReportAllocs()
			for b.Loop() {
				if wrong, _, err := differs(k.conn, states, k.tables); wrong != "" || err != nil {
					b.Fatal(wrong, err)
				}
			}
		})
	}
}
