package watch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/snapshot"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// afterRestart returns the stored form of an object after it was in a snapshot.
func afterRestart(t *testing.T, serviceProxyName string, o *object) *object {
	t.Helper()
	var file bytes.Buffer
	h := &snapshot.Header{Format: snapshot.Format, Saved: time.Now()}
	lab.Must(t, snapshot.Encode(&file, h, func(yield func(runtime.Object) bool) { yield(o.encoded(serviceProxyName)) }))
	var got *object
	_, err := snapshot.Decode(bytes.NewReader(file.Bytes()), int64(file.Len()), snapshot.Identity{}, time.Now(),
		func(item runtime.Object) error {
			got = encodeFor(t, serviceProxyName, item)
			return nil
		})
	lab.Must(t, err)
	return got
}

// TestSnapshotHasStoredObjects: after a restart from a snapshot, the store has the same objects as before. So the plan
// is the same, and an event about an unchanged object is no change.
func TestSnapshotHasStoredObjects(t *testing.T) {
	full := bigService(7)
	full.Annotations = map[string]string{}
	for _, name := range model.AnnotationsOf(false) {
		full.Annotations[name] = "value"
	}
	many := bigSlice(7, 30)
	many.Annotations = map[string]string{
		corev1.EndpointsLastChangeTriggerTime: "2026-03-01T12:00:00.5Z", model.AnnotationsOf(true)[0]: "10.0.0.1=3",
	}
	odd := slice("shop", "web-2", "web")
	odd.Endpoints = []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.9"}, NodeName: ptr("node-1"), Zone: ptr("a"), Hints: &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-1"}},
		}},
		{Addresses: []string{"127.0.0.1"}},
		{Addresses: nil},
		{Addresses: []string{"10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{
			Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true),
		}},
		{Addresses: []string{"fd00::1"}},
	}
	odd.Ports = []discoveryv1.EndpointPort{{Port: ptr(int32(80))}, {Name: ptr("x"), Protocol: ptr(corev1.ProtocolUDP)}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u", Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.0.1.0/24"}, Taints: []corev1.Taint{{Key: "k"}}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}},
	}
	cidr := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	}
	for _, proxyName := range []string{"", "try"} {
		for _, item := range []metav1.Object{
			full, service("shop", "web"), many, odd, slice("shop", "web-3", "web"), slice("shop", "orphan", ""), node, cidr,
		} {
			t.Run(fmt.Sprintf("%s %T %s", proxyName, item, item.GetName()), func(t *testing.T) {
				if s, isService := item.(*corev1.Service); isService && proxyName != "" {
					item = with(s, func(s *corev1.Service) { s.Labels = map[string]string{labelServiceProxyName: proxyName} })
				}
				before := encodeFor(t, proxyName, item)
				after := afterRestart(t, proxyName, before)
				if before.value == nil || !same(before, after) || before.NamespacedName != after.NamespacedName ||
					before.ipv6 != after.ipv6 {
					t.Errorf("before %+v %+v\nafter  %+v %+v", before, before.value, after, after.value)
				}
			})
		}
	}
	headless := with(service("shop", "web"), func(s *corev1.Service) { s.Spec.ClusterIP = "None" })
	if encodeForTest(t, headless).encoded("") != nil {
		t.Error("an object without a value is in the snapshot")
	}
}

// TestFormatChangesWithStoredFields: a process must not use the snapshot of a version that stored fewer fields, because
// it would receive the other fields only after a change of the object. If this test fails, the stored fields have
// changed: increase snapshot.Format, and copy the new sum. A new annotation needs no new format, because [Config.identity] names
// all annotations.
func TestFormatChangesWithStoredFields(t *testing.T) {
	const format = 1
	const want = "a1d94e77ffab45740a586be9fb8fcc257a5a2f22e898a9ca2642fc4435e9cf76"
	counter := 0
	items := []runtime.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Node{}, &networkingv1.ServiceCIDR{}}
	sum := sha256.New()
	for _, item := range items {
		fill(reflect.ValueOf(item).Elem(), &counter)
		switch item := item.(type) {
		case *corev1.Service:
			item.Labels, item.Annotations = nil, nil
		case *discoveryv1.EndpointSlice:
			item.Labels, item.Annotations = map[string]string{discoveryv1.LabelServiceName: "web"}, nil
			item.AddressType = discoveryv1.AddressTypeIPv4
			item.Endpoints[0].Addresses = []string{"10.0.0.1"}
		case *corev1.Node:
			item.Labels = map[string]string{corev1.LabelTopologyZone: "a"}
		}
		stored := encodeForTest(t, item).encoded("")
		data, err := stored.(interface{ Marshal() ([]byte, error) }).Marshal()
		lab.Must(t, err)
		sum.Write(data)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); format != snapshot.Format || got != want {
		t.Errorf("format %d has the sum %s, want format %d, %s", snapshot.Format, got, format, want)
	}
}

// TestConfirmation: the API server's answer about this Node confirms a snapshot only of the same cluster, and only if
// the cluster is not older.
func TestConfirmation(t *testing.T) {
	list := func(version string, uids ...types.UID) *corev1.NodeList {
		l := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
		for _, uid := range uids {
			l.Items = append(l.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: uid}})
		}
		return l
	}
	for name, c := range map[string]struct {
		answer    *corev1.NodeList
		confirmed bool
	}{
		"the same version":            {list("100", "u"), true},
		"a later version":             {list("1000", "u"), true},
		"another Node":                {list("100", "v"), false},
		"no Node":                     {list("100"), false},
		"restored from a backup":      {list("99", "u"), false},
		"a version that is no number": {list("x", "u"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPast()
			node := encodeForTest(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u"}})
			p.header = &snapshot.Header{Versions: map[string]string{"services": "100", "endpointslices": "7"}}
			p.lists = map[string]*storedList{nodesResource: {Items: []runtime.Object{node}}, "services": {}}
			p.decide(t.Context(), c.answer)
			await(t, "decision", p.judged)
			lab.Same(t, c.confirmed, p.lists != nil, "confirmed")
		})
	}
}

// resuming is a source with a folder of snapshots, and an API server that counts lists and may not answer.
type resuming struct {
	*Informers
	lists  atomic.Int64 // except those of this Node
	silent atomic.Bool
	stop   func()
}

func newResuming(t *testing.T, folder string, silent, serves bool) *resuming {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u"}}
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	client := fake.NewClientset(service("shop", "web"), slice("shop", "web-1", "web"), node, cidr)
	r := &resuming{}
	r.silent.Store(silent)
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if r.silent.Load() {
			return true, nil, syscall.ECONNREFUSED
		}
		if action.GetResource().Resource != nodesResource {
			r.lists.Add(1)
		}
		return false, nil, nil
	})
	var err error
	r.Informers, err = NewInformers(Config{Client: fakeClient(client), NodeName: "node-1", Tracker: newTracker(),
		SnapshotDir: folder, Serves: func() bool { return serves }})
	lab.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(r.stop)
	return r
}

// confirmed checks the state after the API server has sent or confirmed all objects.
func (r *resuming) confirmed(t *testing.T, lists int64) {
	t.Helper()
	await(t, "confirmation", r.Confirmed())
	await(t, "objects", r.Loaded())
	saved, _ := r.Snapshot()
	if r.lists.Load() != lists || r.Get(web).Service == nil || len(r.Get(web).Slices) != 1 || !saved.IsZero() {
		t.Errorf("%d lists, want %d; objects %+v; from a snapshot of %v", r.lists.Load(), lists, r.Get(web), saved)
	}
	r.stop()
}

func TestResume(t *testing.T) {
	folder := t.TempDir()
	newResuming(t, folder, false, false).confirmed(t, 3)
	newResuming(t, folder, false, true).confirmed(t, 0)

	t.Run("without an API server", func(t *testing.T) {
		r := newResuming(t, folder, true, false)
		await(t, "objects", r.Loaded())
		saved, _ := r.Snapshot()
		if r.Get(web).Service == nil || len(r.Get(web).Slices) != 1 || r.Node() == nil || saved.IsZero() {
			t.Errorf("objects %+v, Node %v, from a snapshot of %v", r.Get(web), r.Node(), saved)
		}
		select {
		case <-r.Confirmed():
			t.Error("the objects are confirmed")
		default:
		}
		r.silent.Store(false)
		r.confirmed(t, 0)
	})
	t.Run("without an API server, while rules serve", func(t *testing.T) {
		r := newResuming(t, folder, true, true)
		await(t, "answer", r.past.silent)
		time.Sleep(catchUp)
		select {
		case <-r.Loaded():
			t.Error("older objects than those of the rules are used")
		default:
		}
		r.silent.Store(false)
		r.confirmed(t, 0)
	})
	t.Run("with a broken file", func(t *testing.T) {
		lab.Must(t, os.WriteFile(filepath.Join(folder, "objects"), []byte("broken"), 0o600))
		newResuming(t, folder, false, true).confirmed(t, 3)
	})
}

// TestSnapshotFailures: the reason why a snapshot cannot be read or written stays until one has been written.
func TestSnapshotFailures(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "snapshots")
	lab.Must(t, os.WriteFile(folder, nil, 0o600)) // a file instead of the folder
	failure := func(r *resuming, want string) {
		t.Helper()
		_, err := r.Snapshot()
		if text := fmt.Sprint(err); !strings.HasPrefix(text, want) {
			t.Errorf("the reason is %q, want %q", text, want)
		}
	}
	r := newResuming(t, folder, false, false)
	r.confirmed(t, 3)
	failure(r, "cannot write the snapshot "+folder+"/objects: ")

	lab.Must(t, errors.Join(os.Remove(folder), os.Mkdir(folder, 0o700)))
	lab.Must(t, os.WriteFile(filepath.Join(folder, "objects"), []byte("broken"), 0o600))
	r = newResuming(t, folder, true, false)
	await(t, "answer", r.past.silent)
	failure(r, "cannot use the snapshot "+folder+"/objects: the file is damaged")
	r.silent.Store(false)
	r.confirmed(t, 3)
	failure(r, "<nil>")
}

// TestSnapshotsOfOtherSettings: settings that change the stored form of objects change the identity.
func TestSnapshotsOfOtherSettings(t *testing.T) {
	seen := map[snapshot.Identity]int{}
	configs := []Config{
		{}, {NodeName: "n"}, {Cluster: "c"}, {ServiceProxyName: "try"}, {Zones: true}, {Limits: model.Limits{Pairs: 7}},
	}
	for i := range configs {
		id := configs[i].identity()
		if before, known := seen[id]; known {
			t.Errorf("%+v and %+v have the same identity", configs[before], configs[i])
		}
		seen[id] = i
	}
	if one, other := configs[0].snapshotPath(), configs[3].snapshotPath(); one == other {
		t.Errorf("two instances have the same file, %s", one)
	}
}
