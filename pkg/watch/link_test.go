package watch

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestTheLinkIsLoggedOnce: the link logs the first request without an answer, and then the first request with an answer.
func TestTheLinkIsLoggedOnce(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))
	var log bytes.Buffer
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	var l link
	for i, step := range []struct {
		err  error
		want string // "" for no log line
	}{
		{nil, ""}, {refused, "Cannot reach the API server"}, {refused, ""}, {errors.New("something else"), ""},
		{nil, "Reached the API server again"}, {nil, ""}, {refused, "Cannot reach"}, {forbidden, "Reached"}, {forbidden, ""},
	} {
		log.Reset()
		l.record(ctx, step.err)
		if got := log.String(); !strings.Contains(got, step.want) || (got == "") != (step.want == "") {
			t.Errorf("step %d, %v: logged %q, want %q", i, step.err, got, step.want)
		}
	}
}

// TestRefusedConnectionsAreCounted: the source reports refused connections, which client-go retries silently for seconds. Run returns
// immediately when the context ends.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	lab.Must(t, err)
	address := l.Addr().String()
	lab.Must(t, l.Close())
	cfg := &rest.Config{Host: "http://" + address}
	client, err := kubeapi.New(cfg)
	lab.Must(t, err)
	failed, again := make(chan struct{}), atomic.Int64{}
	informers, err := NewInformers(Config{Client: client, NodeName: "node-1", Tracker: newTracker(), Failed: func(r string, _ error) {
		if r == "services" && again.Add(1) == 3 {
			close(failed)
		}
	}})
	lab.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- informers.Run(ctx) }()
	await(t, "third failure", failed)
	cancel()
	start := time.Now()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if spent := time.Since(start); spent > time.Second {
		t.Errorf("Run returned %v after the context ended", spent)
	}
}

// TestPausesAreShort: no pause before a retry is longer than ten seconds.
func TestPausesAreShort(t *testing.T) {
	p, longest := pauses(), time.Duration(0)
	for range 1000 {
		longest = max(longest, p.Step())
	}
	if longest < 5*time.Second || longest > 10*time.Second {
		t.Errorf("the longest pause of a thousand is %v", longest)
	}
}
