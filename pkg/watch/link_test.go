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

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
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
	informers, err := NewInformers(Config{Client: client, Connection: cfg, NodeName: "node-1", Tracker: newTracker(), Failed: func(r string, _ error) {
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

// TestUnreadableObjectsAreLeftOut corrupts an object in transit. The object is absent and reported, and all others are present.
func TestUnreadableObjectsAreLeftOut(t *testing.T) {
	for name, garble := range map[string]func([]byte) []byte{
		// One case corrupts the length of an address within an endpoint. The other corrupts the length of an endpoint, which strip
		// detects.
		"within": func(b []byte) []byte { return bytes.Replace(b, []byte("\x0810.0.0.1"), []byte("\x7f10.0.0.1"), 1) },
		"without": func(b []byte) []byte {
			return bytes.Replace(b, []byte("\x0a\x0810.0.0.1"), []byte("\x7f\x7f10.0.0.1"), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var problems []model.Problem
			cfg := Config{Tracker: newTracker(), Report: func(p model.Problem) { problems = append(problems, p) }}
			store := NewStore(cfg)
			d := sliceDecoder()
			d.convert = cfg.transformer().slice
			for _, broken := range []bool{true, false} {
				s := slice("shop", map[bool]string{true: "web-1", false: "web-2"}[broken], "web")
				data := sent(t, s, discoveryv1.SchemeGroupVersion)
				if broken {
					sound := data
					if data = garble(data); bytes.Equal(sound, data) {
						t.Fatal("nothing is garbled")
					}
				}
				o, _, err := d.Decode(data, nil, nil)
				lab.Must(t, err)
				lab.Must(t, store.slices.Add(o))
			}
			var got []string
			for _, s := range store.Slices(web) {
				got = append(got, s.Name)
			}
			lab.Same(t, []string{"web-2"}, got, "slices")
			if len(problems) == 0 || problems[0].Name.Name != "web-1" || !strings.Contains(problems[0].Reason, "cannot be read") {
				t.Errorf("reported: %+v", problems)
			}
		})
	}
}
