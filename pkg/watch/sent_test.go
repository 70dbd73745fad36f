package watch

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// sent returns an object as the API server sends it in a watch.
func sent(t testing.TB, item runtime.Object, version schema.GroupVersion) []byte {
	t.Helper()
	codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), version)
	data, err := runtime.Encode(codec, item)
	lab.Must(t, err)
	return data
}

// change is one event of a watch.
type change struct {
	kind   string
	object []byte
}

// apiServer answers lists and watches as the API server does.
type apiServer struct {
	t *testing.T
	// lists has the list of each resource.
	lists   map[string][]byte
	changes chan change // of EndpointSlices
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	query := r.URL.Query()
	if version := query.Get("resourceVersion"); s.lists[resource] == nil || query.Has("limit") || query.Has("sendInitialEvents") || query.Has("watch") != (version == listed) {
		s.t.Errorf("unexpected request of %s", r.URL)
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	if !query.Has("watch") {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		if _, err := w.Write(s.lists[resource]); err != nil {
			s.t.Error(err)
		}
		return
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	send := func(kind string, object []byte) {
		event := &metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}
		data, err := event.Marshal()
		if err == nil {
			_, err = frames.Write(data)
		}
		if err != nil {
			s.t.Error(err)
		}
		w.(http.Flusher).Flush()
	}
	w.(http.Flusher).Flush()
	for {
		var changes chan change
		if resource == "endpointslices" {
			changes = s.changes
		}
		select {
		case change := <-changes:
			send(change.kind, change.object)
		case <-r.Context().Done():
			return
		}
	}
}

// listed is the version of the lists.
const listed = "9"

// The test covers all steps from the API server's bytes to marks, with a client of client-go. The first watch of each kind follows its list without
// further requests.
func TestInformersStoreSentObjects(t *testing.T) {
	end := metav1.ListMeta{ResourceVersion: listed}
	core, discovery, networking := corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion
	api := &apiServer{
		t: t, changes: make(chan change),
		lists: map[string][]byte{
			"services":       sent(t, &corev1.ServiceList{ListMeta: end, Items: []corev1.Service{*service("shop", "web")}}, core),
			"endpointslices": sent(t, &discoveryv1.EndpointSliceList{ListMeta: end, Items: []discoveryv1.EndpointSlice{*slice("shop", "web-1", "web")}}, discovery),
			"nodes":          sent(t, &corev1.NodeList{ListMeta: end, Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}}}, core),
			"servicecidrs": sent(t, &networkingv1.ServiceCIDRList{ListMeta: end, Items: []networkingv1.ServiceCIDR{{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}}},
				networking),
		},
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	connection := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}}
	client, err := kubeapi.New(connection)
	lab.Must(t, err)
	tracker := newTracker()
	informers, err := NewInformers(Config{Client: client, NodeName: "node-1", Tracker: tracker})
	lab.Must(t, err)
	run(t, informers)
	await(t, "sync", informers.Loaded())
	awaitMarks(t, tracker, func(d track.Dirty) bool {
		return d.ServiceCIDRs && d.Node && d.ServiceChanges == 1 && d.SliceChanges == 1
	})
	if got := informers.Get(web); got.Service == nil || len(got.Slices) != 1 {
		t.Errorf("Get() = %v", got)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	happens := func(kind string, item *discoveryv1.EndpointSlice) track.Dirty {
		select {
		case api.changes <- change{kind, sent(t, item, discovery)}:
		case <-ctx.Done():
			t.Fatal("EndpointSlices are not watched")
		}
		return awaitMarks(t, tracker, marked(web))
	}
	changed := with(slice("shop", "web-1", "web"), func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses[0] = "10.0.0.2"
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: epoch.Add(time.Second).Format(time.RFC3339Nano)}
	})
	got := happens("MODIFIED", changed)
	want := map[types.NamespacedName][]track.Trigger{web: {{At: epoch.Add(time.Second)}}}
	lab.Same(t, want, got.Triggers, "triggers")
	if addr := informers.Get(web).Slices[0].Endpoints[0].Addr.String(); addr != "10.0.0.2" {
		t.Errorf("the endpoint is %s after a change to 10.0.0.2", addr)
	}
	if got := happens("DELETED", changed); got.SliceChanges != 1 || len(informers.Get(web).Slices) != 0 {
		t.Errorf("after a deletion, which made %d changes, slices %v", got.SliceChanges, informers.Get(web).Slices)
	}
}

// BenchmarkDecode measures the way of an EndpointSlice from the bytes of a watch to its stored form.
func BenchmarkDecode(b *testing.B) {
	for _, endpoints := range []int{endpointsPerService, 100} {
		b.Run(fmt.Sprint(endpoints), func(b *testing.B) {
			data := sent(b, bigSlice(1, endpoints), discoveryv1.SchemeGroupVersion)
			t, s := (&Config{}).transformer(), kubeapi.Scheme()
			decoder := protobuf.NewSerializer(s, s)
			b.ReportAllocs()
			for b.Loop() {
				item, _, err := decoder.Decode(data, nil, nil)
				if err == nil {
					_, err = t.transform(item)
				}
				lab.Must(b, err)
			}
		})
	}
}
