//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/report"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// countingSink counts the finished requests.
type countingSink struct {
	report.EventSink
	mu      *sync.Mutex
	creates *int
	failed  *[]error
}

func (s countingSink) Create(ctx context.Context, e *eventsv1.Event) error {
	err := s.EventSink.Create(ctx, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.creates++
	return err
}

func (s countingSink) Patch(ctx context.Context, e *eventsv1.Event, data []byte) error {
	err := s.EventSink.Patch(ctx, e, data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		*s.failed = append(*s.failed, err)
	}
	return err
}

// testOneEventForAllNodes: the program on this node has reported that the loser's address is taken. 99 more nodes report the same, with
// the permissions of kube-proxy. The API server still has the same Events, and has written each of them at most three times.
func testOneEventForAllNodes(t *testing.T, w *world, loser string) {
	// The API server itself may write an Event about the Service, if it repairs the allocation of its address.
	const program = "kube-nftproxy"
	of := func() (list []eventsv1.Event, version string) {
		all, err := w.api.Client().EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range all.Items {
			if e.Regarding.Name == loser && e.ReportingController == program {
				list = append(list, e)
			}
		}
		return list, all.ResourceVersion
	}
	const nodes = 100
	start := time.Now()
	var before []eventsv1.Event
	var version string
	eventually(t, patience, func() error {
		if before, version = of(); len(before) < 2 { // two conflicts
			return fmt.Errorf("Events of this node: %d", len(before))
		}
		return nil
	})
	changes, err := w.api.Client().EventsV1().Events("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	must(t, err)
	defer changes.Stop()
	var mu sync.Mutex
	var failed []error
	creates := 0
	for range nodes - 1 {
		config := rest.CopyConfig(w.api.Proxy())
		client, err := kubeapi.New(config)
		must(t, err)
		sink := countingSink{report.API(client.Events), &mu, &creates, &failed}
		recorder := report.NewRecorder(sink, program, func(kind string) { t.Error("dropped an Event about a", kind) })
		go recorder.Run(t.Context())
		reporter := report.New(klog.NewKlogr().V(9), recorder, report.Count{Problem: func(string) {}, Suppressed: func(string) {}})
		for _, e := range before {
			field, reason, _ := strings.Cut(e.Note, ": ")
			reporter.Problem(model.Problem{
				Kind: e.Regarding.Kind, Name: types.NamespacedName{Namespace: e.Regarding.Namespace, Name: e.Regarding.Name}, Field: field, Reason: reason,
			})
		}
	}
	eventually(t, patience, func() error {
		mu.Lock()
		defer mu.Unlock()
		if creates < len(before)*(nodes-1) {
			return fmt.Errorf("%d requests", creates)
		}
		events, _ := of()
		for _, e := range events {
			if e.Series == nil {
				return fmt.Errorf("an Event is not marked as seen again: %s %q; errors %v", e.Name, e.Note, failed)
			}
		}
		return nil
	})
	after, _ := of()
	if len(after) != len(before) || len(failed) > 0 {
		t.Errorf("%d nodes have made %d Events of %d; errors %v", nodes, len(after), len(before), failed)
	}
	// The API server writes an Event again only once in a minute, although each node says that it has seen it.
	const last = "last"
	sentinel := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: last}, EventTime: metav1.NowMicro(), Action: last, Reason: last,
		Type: "Normal", ReportingController: last, ReportingInstance: last,
	}
	if _, err := w.api.Client().EventsV1().Events(sentinel.Namespace).Create(t.Context(), sentinel, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	writes := map[string]int{}
	for change := range changes.ResultChan() {
		if e, ok := change.Object.(*eventsv1.Event); !ok || e.Name == last {
			break
		} else if e.Regarding.Name == loser && e.ReportingController == program {
			writes[e.Name]++
		}
	}
	for name, n := range writes {
		if n > 1+int(time.Since(start)/time.Minute)+1 {
			t.Errorf("%d nodes have written Event %s %d times", nodes, name, n)
		}
	}
	lab.Same(t, len(before), len(writes), "writes by Event: %v", writes)
}
