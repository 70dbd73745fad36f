package watch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

func sliceDecoder() decoder {
	t := (&Config{}).transformer()
	return decoder{protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), t.slice}
}

// The decoder returns the same stored form as client-go's decoder followed by transform.
func TestDecoderStores(t *testing.T) {
	slice := bigSlice(7, 3)
	got, kind, err := sliceDecoder().Decode(sent(t, slice, discoveryv1.SchemeGroupVersion), nil, nil)
	lab.Must(t, err)
	if diff := cmp.Diff(encodeForTest(t, slice), got, cmp.AllowUnexported(object{})); diff != "" {
		t.Errorf("stored form (-of the struct +of what was sent):\n%s", diff)
	}
	if kind.Kind != "EndpointSlice" {
		t.Errorf("kind is %v", kind)
	}
}

// For all other content, the decoder returns the same as client-go's decoder.
func TestDecoderOfOtherContent(t *testing.T) {
	bookmark := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
	for name, item := range map[string]struct {
		runtime.Object
		version schema.GroupVersion
	}{
		"bookmark":     {bookmark, discoveryv1.SchemeGroupVersion},
		"status":       {&metav1.Status{Status: metav1.StatusFailure, Code: 410}, corev1.SchemeGroupVersion},
		"another kind": {service("shop", "web"), corev1.SchemeGroupVersion},
	} {
		data := sent(t, item.Object, item.version)
		want, _, err := sliceDecoder().Serializer.Decode(data, nil, nil)
		lab.Must(t, err)
		got, _, err := sliceDecoder().Decode(data, nil, nil)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, (-want +got):\n%s", name, err, diff)
		}
	}
	data := sent(t, bigSlice(7, 3), discoveryv1.SchemeGroupVersion)
	if got, _, err := sliceDecoder().Decode(data, nil, &discoveryv1.EndpointSlice{}); err != nil || got.(*discoveryv1.EndpointSlice).Name == "" {
		t.Errorf("decoded into a struct: %v, %v", got, err)
	}
	if got, _, err := sliceDecoder().Decode(data[:len(data)/2], nil, nil); err == nil {
		t.Errorf("truncated content was decoded as %v", got)
	}
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
	informers, err := NewInformers(Config{Client: client, Connection: connection, NodeName: "node-1", Tracker: tracker})
	lab.Must(t, err)
	run(t, informers)
	await(t, "sync", informers.Loaded())
	awaitMarks(t, tracker, func(d track.Dirty) bool {
		return d.ServiceCIDRs && d.Node && d.ServiceChanges == 1 && d.SliceChanges == 1
	})
	if informers.Service(web) == nil || len(informers.Slices(web)) != 1 {
		t.Errorf("Service() = %v, Slices() = %v", informers.Service(web), informers.Slices(web))
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
	if addr := informers.Slices(web)[0].Endpoints[0].Addresses[0]; addr != "10.0.0.2" {
		t.Errorf("the endpoint is %s after a change to 10.0.0.2", addr)
	}
	if got := happens("DELETED", changed); got.SliceChanges != 1 || len(informers.Slices(web)) != 0 {
		t.Errorf("after a deletion, which made %d changes, Slices() = %v", got.SliceChanges, informers.Slices(web))
	}
}

func BenchmarkDecode(b *testing.B) {
	data := sent(b, bigSlice(1, endpointsPerService), discoveryv1.SchemeGroupVersion)
	t := (&Config{}).transformer()
	for _, way := range []struct {
		name string
		runtime.Decoder
	}{{"struct", sliceDecoder().Serializer}, {"stored", sliceDecoder()}} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				item, _, err := way.Decode(data, nil, nil)
				if err == nil {
					_, err = t.transform(item)
				}
				lab.Must(b, err)
			}
		})
	}
}
