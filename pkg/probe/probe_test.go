package probe

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func ours() []*nft.Table {
	pods := plan.LocalPods{Interface: "cni0"}
	return plan.New(plan.Options{
		Families: inet.Families[:], MasqueradeMark: 1 << 14, LocalPods: [2]plan.LocalPods{pods, pods},
	}).Rules().Samples()
}

// fake rejects messages.
type fake map[int]error

func (f fake) Check(*nft.Batch) (list []nft.Refused, err error) {
	for message, err := range f {
		list = append(list, nft.Refused{Message: message, Err: err})
	}
	return list, nil
}

// asked returns the questions about tables.
func asked(tables []*nft.Table) (list []question) {
	b := nft.NewBatch(0)
	for _, t := range tables {
		a := asker{batch: b, table: t, sets: map[string]bool{}, asked: map[string]bool{}}
		a.ask()
		list = append(list, a.questions...)
	}
	return list
}

// A kernel that lacks one feature rejects every message that uses it. Only that feature is reported.
func TestMissingFeaturesAreNamed(t *testing.T) {
	questions := asked(ours())
	for _, lost := range questions {
		refusals := fake{}
		gone := map[string]bool{lost.what.name: true}
		for _, q := range questions {
			refused := q.what == lost.what
			for _, n := range q.needs {
				refused = refused || gone[n.name]
			}
			if q.family == lost.family && refused {
				refusals[q.message] = fmt.Errorf("add something: %w", unix.ENOENT)
				gone[q.what.name] = true
			}
		}
		got, err := Run(refusals, ours())
		if err != nil || len(got) != 1 || got[0].Family != lost.family || got[0].feature != lost.what {
			t.Errorf("%s %s is missing, %d messages refused: %v, %v", lost.family.Keyword(), lost.what.name, len(refusals), got, err)
		}
	}
}

// Each kind of expression in the rules is tested in each family, and possible modules have names.
func TestAllExpressionsAreProbed(t *testing.T) {
	got := map[inet.Family]map[string]bool{inet.IPv4: {}, inet.IPv6: {}}
	modules := map[string]bool{}
	for _, q := range asked(ours()) {
		got[q.family][q.what.name] = true
		modules[q.what.module] = true
	}
	for _, table := range ours() {
		for _, c := range table.Chains {
			for _, r := range c.Rules {
				for _, e := range r.Exprs {
					if _, ok := e.(*expr.Verdict); ok {
						continue
					}
					if name := expressionFeature(table.Family, e).name; !got[table.Family][name] {
						t.Errorf("%s: no question about %s (%s)", table.Family.Keyword(), name, reflect.TypeOf(e))
					}
				}
			}
		}
		for _, s := range table.Sets {
			if name := setFeature(s).name; !got[table.Family][name] {
				t.Errorf("%s: no question about %s", table.Family.Keyword(), name)
			}
		}
	}
	want := map[string]bool{"": true, "nft_chain_nat": true, "nft_nat": true, "nft_masq": true, "nft_ct": true, "nft_numgen": true, "nft_hash": true, "nft_connlimit": true, "nft_objref": true,
		"nft_fib_ipv4": true, "nft_fib_ipv6": true, "nft_reject_ipv4": true, "nft_reject_ipv6": true}
	lab.Same(t, want, modules, "modules")
}

// A plan without the features of a setting needs none of them. So the kernel has the tables of a process that knew about
// missing features, and a process with all options does not take these tables as a proof that the kernel has them.
func TestSettingsWithoutTheirFeatures(t *testing.T) {
	const lacks = "the kernel lacks it"
	needs := func(o plan.Options, s Setting) bool {
		return slices.ContainsFunc(asked(plan.New(o).Rules().Samples()), func(q question) bool {
			return Missing{feature: q.what}.Setting() == s
		})
	}
	for setting, without := range map[Setting]plan.Options{
		Algorithms:   {DirectReturn: true, Lacks: plan.Lacks{Hash: lacks}},
		Limits:       {DirectReturn: true, Lacks: plan.Lacks{Connlimit: lacks}},
		Timeouts:     {DirectReturn: true, Lacks: plan.Lacks{Timeouts: lacks}},
		DirectReturn: {Lacks: plan.Lacks{Dup: lacks}},
	} {
		without.Families = inet.Families[:]
		if !needs(plan.Options{Families: inet.Families[:], DirectReturn: true}, setting) || needs(without, setting) {
			t.Errorf("%s: the tables need its features also without it, or never", setting.Name)
		}
	}
}

// A family lacks a table only for features that all of its Services need.
func TestOnlyRequiredFeaturesCostAFamily(t *testing.T) {
	masquerade := Missing{Family: inet.IPv4, feature: feature{"masquerade", "NFT_MASQ", "nft_masq"}}
	objref := Missing{Family: inet.IPv4, feature: feature{"objref", objrefOption, "nft_objref"}}
	list := []Missing{objref, masquerade}
	if got := Required(list); !slices.Equal(got, list[1:]) {
		t.Errorf("required: %v", got)
	}
	if got := For(Timeouts, list); !slices.Equal(got, list[:1]) {
		t.Errorf("for timeouts: %v", got)
	}
}

// A lack of memory says nothing about features.
func TestOtherAnswersProveNothing(t *testing.T) {
	got, err := Run(fake{3: fmt.Errorf("add chain: %w", unix.ENOMEM)}, ours())
	if !errors.Is(err, unix.ENOMEM) || got != nil {
		t.Errorf("Run() = %v, %v, want ENOMEM only", got, err)
	}
}

func TestAdvice(t *testing.T) {
	masquerade := feature{"masquerade", "NFT_MASQ", "nft_masq"}
	for _, tc := range []struct {
		list []Missing
		want string
	}{
		{[]Missing{{inet.IPv4, masquerade, unix.ENOENT}, {inet.IPv6, masquerade, unix.ENOENT}, {inet.IPv6, feature{"fib", "NFT_FIB_IPV6", "nft_fib_ipv6"}, unix.ENOENT}},
			"the kernel lacks masquerade (module nft_masq, CONFIG_NFT_MASQ), fib (module nft_fib_ipv6, CONFIG_NFT_FIB_IPV6): " +
				"on the node, run modprobe -a nft_masq nft_fib_ipv6; if there are no such modules, install the package that has them, " +
				"or use a newer kernel, or one that was built with this"},
		{[]Missing{{inet.IPv4, feature{name: "sets with counters"}, unix.EOPNOTSUPP}},
			"the kernel lacks sets with counters (operation not supported): use a newer kernel, or one that was built with this"},
	} {
		what, fix := Advice(tc.list)
		lab.Same(t, tc.want, what+": "+fix, "advice")
	}
}

// This kernel has all features, and the probe leaves neither a table nor a change of the ruleset.
func TestNothingIsMissingHere(t *testing.T) {
	lab.EnterNamespace(t)
	conn := open(t)
	before := generation(t, conn)
	missing, err := Run(conn, ours())
	if err != nil || len(missing) > 0 {
		t.Errorf("Run() = %v, %v", missing, err)
	}
	if after := generation(t, conn); after != before {
		t.Errorf("the ruleset's generation changed from %d to %d", before, after)
	}
	for _, f := range inet.Families {
		if there, err := conn.HasTable(f, tableName); there || err != nil {
			t.Errorf("there is a table %s %s: %v, %v", f.Keyword(), tableName, there, err)
		}
	}
}

// A feature that no kernel has is reported for the family that needs it, and no other feature is.
func TestAFeatureOfNoKernelIsNamed(t *testing.T) {
	lab.EnterNamespace(t)
	tables := ours()
	rules := tables[1].Chains[5].Rules
	tables[1].Chains[5].Rules = append(rules[:len(rules):len(rules)], nft.Rule{Exprs: []expr.Any{
		&expr.Counter{}, &expr.Match{Name: "no-such-match", Info: &xt.Unknown{}}, &expr.Notrack{}, &expr.Counter{},
	}})
	missing, err := Run(open(t), tables)
	if err != nil || len(missing) != 1 || missing[0].Family != inet.IPv6 || !strings.HasPrefix(missing[0].String(), "match (") {
		t.Errorf("Run() = %v, %v, want a match of ip6", missing, err)
	}
}

func open(t *testing.T) *nft.Conn {
	t.Helper()
	conn, err := nft.Open()
	lab.Must(t, err)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func generation(t *testing.T, conn *nft.Conn) uint32 {
	t.Helper()
	g, err := conn.Generation()
	lab.Must(t, err)
	return g
}
