package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

func TestProblemsAreLoggedAndBecomeEvents(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	for _, c := range []struct {
		problem model.Problem
		event   string
	}{
		{model.Problem{Kind: "Service", Name: name, Field: "spec.externalIPs[1]", Reason: "no address"},
			"Warning NotProgrammed spec.externalIPs[1]: no address"},
		{model.Problem{Kind: "Service", Name: name, Field: "spec.healthCheckNodePort", Reason: "taken", Event: "FailedToStartServiceHealthcheck", Action: "Listen"},
			"Warning FailedToStartServiceHealthcheck spec.healthCheckNodePort (on one node or more): taken"},
		{model.Problem{Kind: "Service", Name: name, Field: "spec.externalIPs", Reason: "bank/web has it", EventReason: "a Service of another namespace has it"},
			"Warning NotProgrammed spec.externalIPs: a Service of another namespace has it"},
		{model.Problem{Kind: "Node", Name: types.NamespacedName{Name: "node-1"}, Field: "kube-proxy", Reason: "it runs", Event: "KubeProxyRunning"},
			"Warning KubeProxyRunning kube-proxy: it runs"},
		{model.Problem{Kind: "File", Name: types.NamespacedName{Name: "a.yaml"}, Reason: "not YAML"}, ""},
	} {
		var log bytes.Buffer
		counted := map[string]int{}
		count := Count{Problem: func(kind string) { counted[kind]++ }}
		recorder := events.NewFakeRecorder(1)
		New(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), recorder, count).Problem(c.problem)
		event := ""
		select {
		case event = <-recorder.Events:
		default:
		}
		if event != c.event {
			t.Errorf("%+v: event %q, want %q", c.problem, event, c.event)
		}
		if got := log.String(); !strings.Contains(got, c.problem.Reason) || !strings.Contains(got, c.problem.Name.Name) {
			t.Errorf("%+v: log %q, want it to name the object and the reason", c.problem, got)
		}
		New(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), nil, count).Problem(c.problem)
		if n := strings.Count(log.String(), c.problem.Reason); n != 2 {
			t.Errorf("%+v: %d log lines of two reports, one without an API server", c.problem, n)
		}
		if counted[c.problem.Kind] != 2 {
			t.Errorf("%+v: counted %v, want both", c.problem, counted)
		}
	}
}

func TestEventsOfTheStart(t *testing.T) {
	recorder := events.NewFakeRecorder(2)
	r := New(klog.Background(), recorder, Count{})
	r.Started("node-1")
	r.ServerFailed("node-1", "FailedToStartMetricServer", errors.New("port taken"))
	for _, want := range []string{"Normal Starting ", "Warning FailedToStartMetricServer port taken"} {
		if got := <-recorder.Events; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
	New(klog.Background(), nil, Count{}).Started("node-1") // without an API server, it does nothing
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, string(b))
	return len(b), nil
}

// with returns the lines with a text.
func (l *lines) with(text string) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.list {
		if strings.Contains(line, text) {
			list = append(list, line)
		}
	}
	return list
}

func (l *lines) logger() klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l)))
}

// TestAFloodOfProblemsIsCounted: of many problems, few become log lines and Events. The log has the limit, once at its
// first problem and once at the end of the window. Then, the program reports suppressed problems that still exist.
func TestAFloodOfProblemsIsCounted(t *testing.T) {
	own := room.New(perNode)
	for name, c := range map[string]struct {
		of                      func(i int) types.NamespacedName
		kind                    string
		reported, remembered    int
		limit, atTheEndOfWindow string
	}{
		"of one object": {func(int) types.NamespacedName { return types.NamespacedName{Namespace: "evil", Name: "web"} }, "Service", own.Most(),
			room.New(mostRemembered).Most(), "the share of the namespace", `becauseOfTheLimitOfTheNode=0 becauseOfTheShareOfANamespace="evil: 9976"`},
		"of one namespace": {func(i int) types.NamespacedName { return types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)} }, "Service", own.Most(),
			room.New(mostRemembered).Most(), "the share of the namespace", `becauseOfTheLimitOfTheNode=0 becauseOfTheShareOfANamespace="evil: 9976"`},
		"of many namespaces": {func(i int) types.NamespacedName { return types.NamespacedName{Namespace: fmt.Sprint(i), Name: "web"} }, "Service", perNode,
			mostRemembered, "the limit of the node", `becauseOfTheLimitOfTheNode=9500 becauseOfTheShareOfANamespace=""`},
		"of the Node": {func(int) types.NamespacedName { return types.NamespacedName{Name: "node-1"} }, "Node", own.Most(),
			room.New(mostRemembered).Most(), "the share of the namespace", `becauseOfTheLimitOfTheNode=0 becauseOfTheShareOfANamespace="Node/node-1: 9976"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const flood = 10_000
				var log lines
				found, suppressed := 0, 0
				recorder := events.NewFakeRecorder(flood)
				r := New(log.logger(), recorder, Count{func(string) { found++ }, func(string) { suppressed++ }})
				problem := func(i int) model.Problem {
					return model.Problem{Kind: c.kind, Name: c.of(i), Field: fmt.Sprint(i), Reason: strings.Repeat("x", 5000)}
				}
				check := func(when string, reported, notices, ends int) {
					t.Helper()
					synctest.Wait()
					got := [...]int{len(log.with("xxx")), len(recorder.Events), len(log.with("Too many problems")), len(log.with("were not reported"))}
					if got != [...]int{reported, reported, notices, ends} || len(log.list) != reported+notices+ends {
						t.Errorf("%s: %d log lines, %d Events, %d notices, %d at the end of a window; want %d, %d, %d", when, got[0], got[1], got[2], got[3], reported, notices, ends)
					}
				}
				for i := range flood {
					if i == flood/2 {
						time.Sleep(window - time.Minute)
					}
					r.Problem(problem(i))
				}
				check("in the first window", c.reported, 1, 0)
				if found != flood || suppressed != flood-c.reported || len(log.with(c.limit)) != 1 {
					t.Errorf("found %d, suppressed %d; %q", found, suppressed, log.with("Too many"))
				}
				time.Sleep(time.Minute)
				check("in the second window", 2*c.reported, 1, 1)
				if end := log.with("were not reported"); !strings.Contains(end[0], c.atTheEndOfWindow) {
					t.Errorf("at the end of the first window: %s, want %s", end, c.atTheEndOfWindow)
				}
				// All but one of the remembered problems disappear.
				for i := range c.reported + c.remembered - 1 {
					r.Withdraw(problem(i))
				}
				time.Sleep(window)
				check("in the third window", 2*c.reported+1, 1, 1)
				time.Sleep(3 * window)
				check("after the last problem", 2*c.reported+1, 1, 1)
				for _, line := range log.list {
					if len(line) > 800+400 {
						t.Errorf("a line of %d bytes", len(line))
					}
				}
			})
		})
	}
}

// TestNoNamespaceSilencesOthers has random histories of many namespaces. One namespace always reports as many problems,
// and wants as many Events, as it can. The problems of other namespaces, and of the Node, still get their log line at
// once, and their Event within a bound.
func TestNoNamespaceSilencesOthers(t *testing.T) {
	const namespaces, windows = 20, 3
	slots := time.Duration(namespaces+2) * time.Duration(float64(time.Second)/eventRate) // one Event of each owner
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			s := newServer()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var log lines
			recorder := NewRecorder(s, "kube-nftproxy", func(string) {})
			go recorder.Run(ctx)
			r := New(log.logger(), recorder, Count{func(string) {}, func(string) {}})
			evil := 0
			flood := func() {
				for range rnd.IntN(200) {
					evil++
					name := types.NamespacedName{Namespace: "evil", Name: fmt.Sprint("s", rnd.IntN(evil))}
					p := model.Problem{Kind: "Service", Name: name, Field: fmt.Sprint(evil), Reason: "evil"}
					r.Problem(p)
					if r.Wanted(name); rnd.IntN(4) == 0 {
						r.Withdraw(p)
					}
				}
			}
			due := map[string]time.Time{} // the latest time of an Event, by the reason of its problem
			for begin := time.Now(); time.Since(begin) < windows*window; pass(time.Duration(rnd.Int64N(int64(10 * time.Second)))) {
				flood()
				for reason, at := range due {
					stored := s.has(reason)
					if !stored && time.Now().After(at) {
						t.Errorf("seed %d: no Event for %q within the bound", seed, reason)
					}
					if stored || time.Now().After(at) {
						delete(due, reason)
					}
				}
				if rnd.IntN(4) > 0 {
					continue
				}
				reason := fmt.Sprintf("reason %d.", time.Since(begin))
				p := model.Problem{Kind: "Service", Name: types.NamespacedName{Namespace: fmt.Sprint("n", rnd.IntN(namespaces)), Name: "web"}, Reason: reason}
				if rnd.IntN(namespaces) == 0 {
					p.Kind, p.Name = "Node", types.NamespacedName{Name: "node-1"}
				}
				r.Problem(p)
				flood()
				if len(log.with(reason)) != 1 {
					t.Errorf("seed %d: %d log lines for %+v", seed, len(log.with(reason)), p)
				}
				due[reason] = time.Now().Add(slots + spread)
			}
			if evil < 1000 || len(log.with("evil")) > evil/10 {
				t.Errorf("seed %d: %d of %d problems of a flood were reported", seed, len(log.with("evil")), evil)
			}
		})
	}
}

// TestOthersDoNotUseUpAShare: Services of another namespace take an address of a Service again and again, by turns. The
// problem is reported once in a window, and so the log has other problems of the Service's namespace.
func TestOthersDoNotUseUpAShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := New(log.logger(), nil, Count{func(string) {}, func(string) {}})
		taken := func(by int) model.Problem {
			return model.Problem{
				Kind: "Service", Name: types.NamespacedName{Namespace: "bank", Name: "pay"}, Field: "spec.externalIPs",
				Reason: fmt.Sprint("taken by evil/", by), EventReason: "taken by a Service of another namespace",
			}
		}
		for windows := range 2 {
			for i := range 100 {
				r.Problem(taken(i))
				r.Withdraw(taken(i))
			}
			r.Problem(model.Problem{Kind: "Service", Name: types.NamespacedName{Namespace: "bank", Name: "other"},
				Field: fmt.Sprint(windows), Reason: "not a range"})
			synctest.Wait()
			got := [...]int{len(log.with("taken by evil")), len(log.with("not a range"))}
			if want := windows + 1; got != [...]int{want, want} {
				t.Errorf("window %d: %d and %d log lines, want %d each", windows, got[0], got[1], want)
			}
			time.Sleep(window)
		}
	})
}
