//go:build twin

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestEventsAreThoseOfKubeProxy starts both programs, also with ports in use, and compares their Events.
func TestEventsAreThoseOfKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1})
	w.apply(checked(checkPort))
	var seen [2][]string
	for i, path := range bothPrograms(t) {
		t.Run(filepath.Base(path), func(t *testing.T) { seen[i] = asked{world: w, path: path, theirs: i == 0}.in(t).events() })
	}
	// Events that kube-proxy would write (app/server.go), if it did not exit before they are sent.
	for address, reason := range map[string]string{
		"127.0.0.1:10249": "FailedToStartMetricServer", "0.0.0.0:10256": "FailedToStartProxierHealthcheck",
	} {
		const about = "%s is taken: in default: %s/StartKubeProxy about v1 Node /node-1 \"\": %s"
		seen[0] = append(seen[0], fmt.Sprintf(about, address, "Normal Starting", ""),
			fmt.Sprintf(about, address, "Warning "+reason, "listen tcp "+address+": bind: address already in use"))
	}
	slices.Sort(seen[0])
	lab.Same(t, seen[0], seen[1], "Events (-kube-proxy +ours)")
}

// events provokes all Events, and returns them.
func (a asked) events() (seen []string) {
	live := func(what string, reasons []string, flags ...string) *proxy.Program {
		a.forgetEvents()
		p := a.run(flags...)
		for _, e := range a.awaitEvents(reasons...) {
			seen = append(seen, what+": "+e)
		}
		return p
	}
	live("a start", []string{"Starting"}).Kill()
	live("another start", []string{"Starting"}).Kill()
	for _, server := range []struct{ address, reason string }{
		{"127.0.0.1:10249", "FailedToStartMetricServer"}, {"0.0.0.0:10256", "FailedToStartProxierHealthcheck"},
	} {
		address := server.address
		free := take(a, a.Node, address)
		var reasons []string
		if !a.theirs {
			reasons = []string{"Starting", server.reason}
		}
		p := live(address+" is taken", reasons, "--bind-address-hard-fail")
		if err := exits(a, p); err == nil || err.Error() != "exit status 1" {
			a.Errorf("%s ends with %v when %s is taken, want status 1", p, err, address)
		}
		free()
	}
	defer take(a, a.Node, fmt.Sprintf("%s:%d", a.Node.IPv4, checkPort))()
	p := live("a health check node port is taken", []string{"Starting", "FailedToStartServiceHealthcheck"})
	for _, want := range []string{"kubenftproxy_health_check_ports_failed", `kubenftproxy_problems_total{kind="Service"}`} {
		if m, err := p.Metrics(a.Context()); err != nil || !a.theirs && m[want] != 1 {
			a.Errorf("%s is %v, %v, want 1", want, m[want], err)
		}
	}
	p.Kill()
	slices.Sort(seen)
	return seen
}

func (a asked) forgetEvents() {
	a.Helper()
	must(a, a.api.Client().EventsV1().Events("default").DeleteCollection(a.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// awaitEvents waits until there is an Event for each of the reasons, and returns all Events.
func (a asked) awaitEvents(reasons ...string) (found []string) {
	a.Helper()
	eventually(a, patience, func() error {
		list, err := a.api.Client().EventsV1().Events("").List(a.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		found = nil
		for i := range list.Items {
			found = append(found, a.describe(&list.Items[i]))
		}
		for _, reason := range reasons {
			if !strings.Contains(strings.Join(found, "\n"), " "+reason+"/") {
				return fmt.Errorf("no Event %s in %q", reason, found)
			}
		}
		return nil
	})
	return found
}

// cause matches the part of a note that comes from the system: the other words differ between the programs.
var cause = regexp.MustCompile(`listen tcp.*$`)

// describe returns the content of an Event, and checks its author.
func (a asked) describe(e *eventsv1.Event) string {
	name := filepath.Base(a.path)
	if e.ReportingController != name || !strings.HasPrefix(e.ReportingInstance, name+"-") {
		a.Errorf("Event %s is reported by %s of %s, want %s", e.Reason, e.ReportingInstance, e.ReportingController, name)
	}
	r := e.Regarding
	return fmt.Sprintf("in %s: %s %s/%s about %s %s %s/%s %q: %s",
		e.Namespace, e.Type, e.Reason, e.Action, r.APIVersion, r.Kind, r.Namespace, r.Name, r.UID, cause.FindString(e.Note))
}
