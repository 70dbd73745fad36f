package plan

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestPageHasTheClasses: the table of classes in docs/maps.md has the first and the last class of each group of kinds, with their chains.
func TestPageHasTheClasses(t *testing.T) {
	page, err := os.ReadFile("../../docs/maps.md")
	lab.Must(t, err)
	lines := strings.Split(string(page), "\n")
	has := func(parts ...string) {
		if !slices.ContainsFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) })
		}) {
			t.Errorf("no row has all of %q", parts)
		}
	}
	for k := kindReject; k < kindAffinity; k++ {
		for _, of := range []uint8{0, k.classes() - 1} {
			c := class{kind: k, of: of}
			has(fmt.Sprintf("`0:%x`", c.code()), "`"+c.name()+"`")
		}
	}
	for _, at := range []int{0, len(timeouts) - 1} {
		c := class{kind: kindAffinity, timeout: timeouts[at]}
		has(fmt.Sprintf("`%x:%x`", 0, c.number()&classBits), "`"+c.chain()+"`")
	}
	has(fmt.Sprintf("with indexes from %d ", table{balance.Sizes[0], selectors[0]}.index()))
}

func TestSelectorsHaveAllLengths(t *testing.T) {
	for i, n := range balance.Lengths {
		if len(selectors) != len(balance.Lengths)+1 || selectors[i+1] != (selector{balance.Source, n}) {
			t.Errorf("%v is not the selector of the prefix length %d", selectors[i+1], n)
		}
	}
}

// TestRetainedElementsAreKnown: each element that Services need only for a while leads to a class that
// [Rules.LeadsToClass] knows, also if every plan has its chain. All other elements of the dispatch maps are in every
// plan.
func TestRetainedElementsAreKnown(t *testing.T) {
	p := New(testOptions())
	l := p.rules.layouts[inet.IPv4]
	for c := range unnumberedClasses() {
		for _, st := range []step{stepFirst, stepRange, stepAllowed, stepLocal, stepTimed, stepFull} {
			e := l.dispatchElement(st, c)
			if known, wanted := p.Rules().LeadsToClass(&e), p.leads[lead{l, st, c}].wanted(); known == c.isFixed(st) || wanted {
				t.Errorf("%s: known %v, wanted %v", &e, known, wanted)
			}
			var w wants
			w.leadTo(l, c, st)
			p.replace(&wants{}, &w)
			if p.leads[lead{l, st, c}].wanted() == c.isFixed(st) {
				t.Errorf("%s is used, wanted %v", &e, c.isFixed(st))
			}
			p.replace(&w, &wants{})
		}
	}
}

func TestChainNamesLeadBackToTheirClasses(t *testing.T) {
	seen := map[string]class{}
	type key struct {
		step   bool
		number uint32
	}
	numbers := map[key]class{}
	for k := kindAffinity; k < kindEnd; k++ {
		var classes []class
		for of := range k.classes() {
			if kinds[k].by == byTimeout {
				for _, n := range timeouts {
					classes = append(classes, class{kind: k, of: of, timeout: n})
				}
				continue
			}
			for _, n := range []uint32{1, 10, 16, 18, 20, 60000, 1 << 16} {
				classes = append(classes, class{kind: k, of: of, table: table{size: tableSize(n)}})
			}
			for _, by := range selectors {
				for _, size := range balance.Sizes {
					classes = append(classes, class{kind: k, of: of, table: table{size, by}})
				}
			}
		}
		for _, c := range classes {
			if other, ok := seen[c.chain()]; ok && other != c.ofChain() {
				t.Fatalf("%v and %v have the same chain %s", c, other, c.chain())
			}
			seen[c.chain()] = c.ofChain()
			if got, ok := classOf(inet.IPv6, c.chain()); !ok || got != c.ofChain() {
				t.Errorf("classOf(%q) = %v, %v, want %v", c.chain(), got, ok, c)
			}
			again := k == kindPass && chance(c.of) == secondChance // the word is that of the first chance
			at := key{k >= kindPick || again, c.number()}
			if other, ok := numbers[at]; ok && other != c {
				t.Errorf("%v and %v have the same number", c, other)
			}
			numbers[at] = c
			if k < kindPick && (c.number()&^wordBits != 0 || kindOf(c.number()|topBit) != k) {
				t.Errorf("%v has the number %x, which is read as kind %v", c, c.number(), kindOf(c.number()))
			}
		}
	}
	for _, name := range []string{"services", "external-local", "endpoints-of-", "endpoints-of-x", "endpoints-of-007", "endpoints-of-17", "nonsense-3", "endpoints-of-16777216", "maglev-of-250", "maglev-of-1", "source-24-of", "source-25-of-251", "source-024-of-251", "pick-maglev-of-20", "maglev", "-251", "-",
		"affinity-for-13", "affinity-for-", ""} {
		if c, ok := classOf(inet.IPv6, name); ok {
			t.Errorf("classOf(%q) = %v", name, c)
		}
	}
	if c, ok := classOf(inet.IPv4, "source-64-of-251"); ok {
		t.Errorf("an IPv4 address has a prefix of 64 bits: %v", c)
	}
	for index := range uint32(0x100) {
		if t1, ok := tableAt(index); ok && (t1.index() != index || index&affinityBit != 0) {
			t.Errorf("the table of index %d has index %d", index, t1.index())
		}
	}
}

// TestSizesOfTables: a table has room for all endpoints, and at most a quarter more slots than endpoints.
func TestSizesOfTables(t *testing.T) {
	for n := uint32(1); n <= mostSlots; n++ {
		size := tableSize(n)
		index := table{size: size}.index()
		known, _ := tableAt(index)
		if size < n || size > n+n/4 || known.size != size || surelyFilled(size) > n || index > 0xff {
			t.Fatalf("%d endpoints: size %d, index %d, %d surely filled", n, size, index, surelyFilled(size))
		}
	}
}

func TestTimeoutsAreRoundedUp(t *testing.T) {
	for seconds := uint32(1); seconds <= 86400; seconds++ {
		if got := timeoutClass(seconds); got < seconds || got > seconds+seconds/3+1 {
			t.Fatalf("%d seconds are rounded to %d", seconds, got)
		}
	}
	for _, exact := range []uint32{125, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 86400} {
		lab.Same(t, exact, timeoutClass(exact), "seconds are rounded")
	}
	lab.Same(t, 86400, timeoutClass(100000), "more than a day is rounded")
}

// ofChain returns one class for all classes with the same chain: it has the first route to the same list.
func (c class) ofChain() class {
	if c.kind.hasRoute() {
		c.of = uint8(c.route().list()) // routeCluster or routeClusterLocal
	}
	return c
}
