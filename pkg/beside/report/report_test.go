package report

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
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

// TestAFloodOfProblemsIsCounted: of many problems, few become log lines and Events, for one object and for many.
func TestAFloodOfProblemsIsCounted(t *testing.T) {
	for name, want := range map[string]struct{ objects, reported, notices int }{
		"of one object": {1, 20, 1}, "of some objects": {10, 200, 10}, "of many objects": {5000, 500, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			const floods, each, pause = 2, 10_000, 9 * time.Minute
			var log bytes.Buffer
			found, suppressed := 0, 0
			recorder := events.NewFakeRecorder(floods * each)
			r := New(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), recorder,
				Count{func(string) { found++ }, func(string) { suppressed++ }})
			for range floods {
				for i := range each {
					if i == each/2 {
						time.Sleep(pause)
					}
					r.Problem(model.Problem{Kind: "Service", Name: types.NamespacedName{Name: fmt.Sprint(i % want.objects)}, Reason: strings.Repeat("x", 5000)})
				}
				time.Sleep(10*time.Minute + time.Second - pause)
			}
			lines := strings.Count(log.String(), "\n")
			if most := floods * (want.reported + want.notices); found != floods*each || suppressed != floods*(each-want.reported) ||
				len(recorder.Events) != floods*want.reported || lines != most+floods-1 || log.Len() > lines*(800+400) {
				t.Errorf("%s: found %d, suppressed %d, %d Events, %d lines of %d bytes; want %d reported", name, found, suppressed, len(recorder.Events), lines, log.Len(), floods*want.reported)
			}
		})
	}
}
