package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"

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
			"Warning FailedToStartServiceHealthcheck spec.healthCheckNodePort: taken"},
		{model.Problem{Kind: "File", Name: types.NamespacedName{Name: "a.yaml"}, Reason: "not YAML"}, ""},
	} {
		var log bytes.Buffer
		counted := map[string]int{}
		count := func(kind string) { counted[kind]++ }
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
	r := New(klog.Background(), recorder, func(string) {})
	r.Started("node-1")
	r.ServerFailed("node-1", "FailedToStartMetricServer", errors.New("port taken"))
	for _, want := range []string{"Normal Starting ", "Warning FailedToStartMetricServer port taken"} {
		if got := <-recorder.Events; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
	New(klog.Background(), nil, func(string) {}).Started("node-1") // without an API server there is nobody to tell
}
