package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func named(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
}

// reporting returns a proxy with only a book of problems, and the list of reported problems.
func reporting() (*Proxy, *[]model.Problem) {
	reported := &[]model.Problem{}
	p := &Proxy{problems: newProblemBook()}
	p.Metrics = metrics.NewLoop(metrics.New(prometheus.NewRegistry(), metrics.Config{}), nil, nil)
	p.Report = func(problem model.Problem) { *reported = append(*reported, problem) }
	return p, reported
}

// manyProblems returns n problems of one Service, numbered from a number on.
func manyProblems(from, n int) (list []model.Problem) {
	for i := range n {
		list = append(list, model.Problem{Kind: "Service", Name: named(1), Field: fmt.Sprint(from + i)})
	}
	return list
}

func TestOnlyNewProblemsAreReported(t *testing.T) {
	p, reported := reporting()
	const n = 2_000
	p.reportNew(named(1), manyProblems(0, n))
	p.reportNew(named(1), manyProblems(n/2, n))
	if len(*reported) != n+n/2 {
		t.Errorf("%d reports of %d problems and then of as many, of which half are new", len(*reported), n)
	}
}

// TestProblemsThatDisappearAreWithdrawn: each problem of a Service, and each conflict, that no longer exists.
func TestProblemsThatDisappearAreWithdrawn(t *testing.T) {
	p, _ := reporting()
	var withdrawn []string
	p.Withdraw = func(problem model.Problem) { withdrawn = append(withdrawn, problem.Field) }
	expect := func(when string, want ...string) {
		t.Helper()
		slices.Sort(withdrawn)
		lab.Same(t, want, withdrawn, "%s: withdrawn", when)
		withdrawn = nil
	}
	p.reportNew(named(1), manyProblems(0, 4))
	expect("new problems")
	p.reportNew(named(1), append(manyProblems(1, 2), manyProblems(1, 1)...))
	expect("two problems disappear", "0", "3")
	p.reportNew(named(1), nil)
	expect("the Service is deleted", "1", "2")

	loser := model.PortName{NamespacedName: named(1)}
	of := func(kinds ...model.Kind) (list []plan.Conflict) {
		for _, k := range kinds {
			list = append(list, plan.Conflict{Kind: k, Loser: loser})
		}
		return list
	}
	conflicts := fakeConflicts{}
	for _, list := range [][]plan.Conflict{of(model.ClusterIP, model.ExternalIP, model.NodePort), of(model.ExternalIP), nil} {
		conflicts[named(1)] = list
		p.reportConflicts(conflicts)
	}
	expect("conflicts", "spec.clusterIPs", "spec.externalIPs", "spec.ports[].nodePort")
}

// fakeConflicts has the conflicts of each Service.
type fakeConflicts map[types.NamespacedName][]plan.Conflict

func (c fakeConflicts) TakeLosers() (losers []plan.Loser, more bool) {
	for name := range c {
		losers = append(losers, plan.Loser{NamespacedName: name, Cost: 1})
	}
	return losers, false
}

func (c fakeConflicts) Of(loser types.NamespacedName) ([]plan.Conflict, int) {
	return c[loser], len(c[loser])
}

func TestObjectsWithProblemsAreCounted(t *testing.T) {
	p, _ := reporting()
	of := func(kind string, i int, field string) model.Problem {
		return model.Problem{Kind: kind, Name: named(i), Field: field}
	}
	expect := func(when string, services, slices int) {
		t.Helper()
		if got := p.problems.total; got != [len(objectKinds)]int{services, slices} {
			t.Errorf("%s: %v objects of kinds %v, want %d, %d", when, got, objectKinds, services, slices)
		}
	}
	p.reportNew(named(1), []model.Problem{of("Service", 1, "a"), of("EndpointSlice", 7, "x"), of("Service", 1, "b"), of("EndpointSlice", 8, "y")})
	expect("one Service with two slices", 1, 2)
	p.reportNew(named(2), []model.Problem{of("Service", 2, "a"), of("File", 2, "a")})
	expect("another one", 2, 2)
	p.reportNew(named(2), []model.Problem{of("Service", 2, "b")})
	expect("another problem of the same object", 2, 2)
	p.reportNew(named(1), []model.Problem{of("EndpointSlice", 8, "y")})
	expect("partly corrected", 1, 1)
	p.reportNew(named(1), nil)
	p.reportNew(named(2), nil)
	expect("all corrected", 0, 0)
	lab.Same(t, 0, len(p.problems.lists)+len(p.problems.objects), "lists are kept of Services without problems")
}

// fakeClaims holds the number of conflicts of each losing Service.
type fakeClaims map[types.NamespacedName]int

func (c fakeClaims) TakeLosers() (losers []plan.Loser, more bool) {
	for _, name := range slices.SortedFunc(maps.Keys(c), model.CompareNames) {
		losers = append(losers, plan.Loser{NamespacedName: name, Cost: c[name]})
	}
	return losers, false
}

func (c fakeClaims) Of(loser types.NamespacedName) (list []plan.Conflict, all int) {
	for i := range min(c[loser], 20) {
		list = append(list, plan.Conflict{
			Key: model.Key{Port: uint16(i + 1), Protocol: inet.TCP}, Kind: model.NodePort,
			Loser: model.PortName{NamespacedName: loser}, Winner: model.PortName{NamespacedName: named(0)},
		})
	}
	return list, c[loser]
}

// TestEventsDoNotNameServicesOfOthers: the Event of a conflict names the other Service only if it is in the same
// namespace.
func TestEventsDoNotNameServicesOfOthers(t *testing.T) {
	for namespace, named := range map[string]bool{"bank": false, "shop": true} {
		name := func(namespace, name, port string) model.PortName {
			return model.PortName{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, Port: port}
		}
		problem := conflictProblem(&plan.Conflict{
			Key: model.Key{Addr: netip.MustParseAddr("192.0.2.51"), Port: 443, Protocol: inet.TCP}, Kind: model.ExternalIP,
			Winner: name(namespace, "merger-api", "p"), Loser: name("shop", "web", "https"),
		})
		if want := "192.0.2.51:443/tcp is not programmed: already used by " + namespace + "/merger-api:p"; problem.Reason != want {
			t.Errorf("reason %q, want %q", problem.Reason, want)
		}
		want := "192.0.2.51:443/tcp is not programmed: already used by a Service of another namespace"
		if named {
			want = ""
		}
		lab.Same(t, want, problem.EventReason, "%s: reason in the Event", namespace)
	}
	unnamed := conflictProblem(&plan.Conflict{Kind: model.ExternalIP, Loser: model.PortName{NamespacedName: types.NamespacedName{Namespace: "shop"}}})
	lab.Same(t, "", unnamed.EventReason, "a cluster IP: reason in the Event")
}

// A tenant with very many conflicts does not delay the report of another tenant's conflict, or much of one sync.
func TestConflictsAreReportedInTurns(t *testing.T) {
	p, reported := reporting()
	claims := fakeClaims{{Namespace: "zbank", Name: "pay"}: 1}
	for i := range 100 {
		claims[types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}] = 1_000
	}
	p.reportConflicts(claims)
	own := slices.ContainsFunc(*reported, func(p model.Problem) bool { return p.Name.Namespace == "zbank" })
	if most := 21 * roundElements / 1_000; !own || len(*reported) > most+1 || !(len(p.problems.losing) > 0) {
		t.Errorf("%d reports at once, of them one of the small namespace: %t", len(*reported), own)
	}
}

func TestConflictsAreForgottenWithTheLoser(t *testing.T) {
	p, reported := reporting()
	expect := func(when string, c fakeClaims, reports, kept int) {
		t.Helper()
		*reported = nil
		p.reportConflicts(c)
		n := 0
		for _, list := range p.problems.conflicts {
			n += len(list)
		}
		if len(*reported) != reports || n != kept {
			t.Errorf("%s: %d reports, %d conflicts are kept, want %d, %d", when, len(*reported), n, reports, kept)
		}
	}
	expect("two losers", fakeClaims{named(1): 2, named(2): 1}, 3, 3)
	expect("again", fakeClaims{named(1): 2, named(2): 1}, 0, 3)
	expect("one conflict more, one loser wins", fakeClaims{named(1): 3, named(2): 0}, 1, 3)
	expect("it loses again", fakeClaims{named(2): 1}, 1, 4)
	expect("both win", fakeClaims{named(1): 0, named(2): 0}, 0, 0)
	expect("very many", fakeClaims{named(1): 10_000}, 21, 21)
	// While one conflict lasts, resolved conflicts of other Services are not kept in memory.
	for i := range 100 {
		p.reportConflicts(fakeClaims{named(1): 1, named(10 + i): 1})
		p.reportConflicts(fakeClaims{named(10 + i): 0})
	}
	if n := len(p.problems.conflicts); n != 1 {
		t.Errorf("conflicts of %d Services are kept, want those of 1", n)
	}
}
