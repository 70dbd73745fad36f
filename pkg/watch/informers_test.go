package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const patient = 30 * time.Second

// run runs a source until the test ends.
func run(t *testing.T, source interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		lab.Check(t, <-done, "Run")
	})
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patient):
		t.Fatalf("no %s after %v", what, patient)
	}
}

// awaitMarks collects marks until enough returns true, and returns all of them.
func awaitMarks(t *testing.T, tracker *track.Tracker, enough func(track.Dirty) bool) track.Dirty {
	t.Helper()
	all := track.Dirty{Services: map[types.NamespacedName]struct{}{}, Triggers: map[types.NamespacedName][]track.Trigger{}}
	for !enough(all) {
		await(t, "further mark", tracker.Ready())
		d := tracker.Take()
		maps.Copy(all.Services, d.Services)
		for name, triggers := range d.Triggers {
			all.Triggers[name] = append(all.Triggers[name], triggers...)
		}
		all.Node, all.ServiceCIDRs = all.Node || d.Node, all.ServiceCIDRs || d.ServiceCIDRs
		all.ServiceChanges, all.SliceChanges = all.ServiceChanges+d.ServiceChanges, all.SliceChanges+d.SliceChanges
	}
	return all
}

func marked(name types.NamespacedName) func(track.Dirty) bool {
	return func(d track.Dirty) bool {
		_, ok := d.Services[name]
		return ok
	}
}

// fakeClient returns a client with client-go's fake one behind it.
func fakeClient(fake *fake.Clientset) *kubeapi.Client {
	return &kubeapi.Client{
		Services: func(namespace string) kubeapi.Reader[*corev1.ServiceList] { return fake.CoreV1().Services(namespace) },
		EndpointSlices: func(namespace string) kubeapi.Reader[*discoveryv1.EndpointSliceList] {
			return fake.DiscoveryV1().EndpointSlices(namespace)
		},
		Nodes: fake.CoreV1().Nodes(), ServiceCIDRs: fake.NetworkingV1().ServiceCIDRs(),
		Pods: fake.CoreV1().Pods(metav1.NamespaceAll),
	}
}

// watchAll returns a channel that is closed when all resources are watched: the fake client does not send changes between list and
// watch.
func watchAll(client *fake.Clientset, resources ...string) (watching <-chan struct{}) {
	var mu sync.Mutex
	done := make(chan struct{})
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		before := len(resources)
		resources = slices.DeleteFunc(resources, func(name string) bool { return name == action.GetResource().Resource })
		if before > 0 && len(resources) == 0 {
			close(done)
		}
		return true, w, err
	})
	return done
}

func startInformers(t *testing.T, client *fake.Clientset) (*Informers, *track.Tracker) {
	t.Helper()
	return startInformersFor(t, client, "")
}

func startInformersFor(t *testing.T, client *fake.Clientset, serviceProxyName string) (*Informers, *track.Tracker) {
	t.Helper()
	tracker := newTracker()
	informers, err := NewInformers(Config{Client: fakeClient(client), NodeName: "node-1", ServiceProxyName: serviceProxyName, Tracker: tracker})
	lab.Must(t, err)
	run(t, informers)
	return informers, tracker
}

func TestInformers(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	client := fake.NewClientset(service("shop", "web"), slice("shop", "web-1", "web"), node, cidr)
	watching := watchAll(client, "services", "endpointslices")
	informers, tracker := startInformers(t, client)
	await(t, "sync", informers.Loaded())
	await(t, "watch", watching)
	awaitMarks(t, tracker, func(d track.Dirty) bool { return d.ServiceCIDRs && d.Node && marked(web)(d) })

	lab.Same(t, []types.NamespacedName{web}, informers.Services(), "Services")
	if informers.Get(web).Service == nil || informers.Node() == nil {
		t.Errorf("Service = %v, Node() = %v, want both", informers.Get(web).Service, informers.Node())
	}
	lab.Same(t, 1, len(informers.ServiceCIDRs()), "ServiceCIDRs")

	ctx := t.Context()
	moved := slice("shop", "web-1", "db")
	lab.Must(t, lab.Err(client.DiscoveryV1().EndpointSlices("shop").Update(ctx, moved, metav1.UpdateOptions{})))
	got := awaitMarks(t, tracker, marked(db))
	lab.Same(t, names(web, db), got.Services, "services marked when a slice moved")
	if left, joined := len(informers.Get(web).Slices), len(informers.Get(db).Slices); left != 0 || joined != 1 {
		t.Errorf("the services have %d and %d slices, want 0 and 1", left, joined)
	}

	// An update without effect must cause no mark. A deletion follows, because a mark for the update would arrive no later than
	// the mark for the deletion.
	same := with(service("shop", "web"), func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} })
	lab.Must(t, lab.Err(client.CoreV1().Services("shop").Update(ctx, same, metav1.UpdateOptions{})))
	lab.Must(t, client.CoreV1().Services("shop").Delete(ctx, "web", metav1.DeleteOptions{}))
	if got := awaitMarks(t, tracker, marked(web)); got.ServiceChanges != 1 {
		t.Errorf("a no-op and a deletion were %d changes, want 1", got.ServiceChanges)
	}
	if got := informers.Get(web).Service; got != nil {
		t.Errorf("the deleted Service is still %v", got)
	}
}

func TestInformersSelect(t *testing.T) {
	for name, want := range map[string][]string{
		"": {
			"endpointslices labels !service.kubernetes.io/headless fields ",
			"nodes labels  fields metadata.name=node-1",
			"servicecidrs labels  fields ",
			"services labels !service.kubernetes.io/service-proxy-name fields spec.clusterIP!=None",
		},
		// Unused addresses of ServiceCIDRs belong to the other proxy.
		"try": {
			"endpointslices labels !service.kubernetes.io/headless fields ",
			"nodes labels  fields metadata.name=node-1",
			"services labels service.kubernetes.io/service-proxy-name=try fields spec.clusterIP!=None",
		},
	} {
		t.Run(name, func(t *testing.T) { testInformersSelect(t, name, want) })
	}
}

func testInformersSelect(t *testing.T, serviceProxyName string, want []string) {
	client := fake.NewClientset(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}})
	var mu sync.Mutex
	var got []string
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list := action.(clienttesting.ListActionImpl)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, list.GetResource().Resource+" labels "+list.GetListRestrictions().Labels.String()+
			" fields "+list.GetListRestrictions().Fields.String())
		return false, nil, nil
	})
	informers, tracker := startInformersFor(t, client, serviceProxyName)
	await(t, "sync", informers.Loaded())
	if serviceProxyName == "" {
		awaitMarks(t, tracker, func(d track.Dirty) bool { return d.ServiceCIDRs })
	}

	mu.Lock()
	defer mu.Unlock()
	slices.Sort(got)
	// Before each watch, the source lists one object (see current).
	lab.Same(t, want, slices.Compact(got), "requests")
}

// Synced waits for Services, EndpointSlices and the Node.
func TestInformersWaitForAllKinds(t *testing.T) {
	for _, late := range []string{"services", "endpointslices", "nodes"} {
		t.Run(late, func(t *testing.T) {
			client := fake.NewClientset(service("shop", "web"), slice("shop", "web-1", "web"))
			asked, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			client.PrependReactor("list", late, func(clienttesting.Action) (bool, runtime.Object, error) {
				once.Do(func() { close(asked) })
				<-release
				return false, nil, nil
			})
			informers, _ := startInformers(t, client)
			await(t, "request", asked)
			select {
			case <-informers.Loaded():
				t.Errorf("synced before %s were listed", late)
			default:
			}
			close(release)
			await(t, "sync", informers.Loaded())
		})
	}
}

// An API server older than 1.33 has no ServiceCIDRs in v1, and an old ClusterRole does not permit them.
func TestInformersContinueWithoutServiceCIDRs(t *testing.T) {
	resource := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	for _, refusal := range []error{
		apierrors.NewNotFound(resource, ""),
		apierrors.NewForbidden(resource, "", nil),
	} {
		t.Run(string(apierrors.ReasonForError(refusal)), func(t *testing.T) {
			client := fake.NewClientset(service("shop", "web"))
			refused := make(chan struct{})
			var once sync.Once
			client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
				once.Do(func() { close(refused) })
				return true, nil, refusal
			})
			informers, _ := startInformers(t, client)
			await(t, "refusal", refused)
			await(t, "sync", informers.Loaded())
			if informers.Get(web).Service == nil || informers.ServiceCIDRs() != nil {
				t.Errorf("Service = %v, ServiceCIDRs() = %v", informers.Get(web).Service, informers.ServiceCIDRs())
			}
		})
	}
}

// An API server with a temporary failure may have ServiceCIDRs. If the source did not wait for them, a new process would remove
// them from the rules of the previous process.
func TestInformersWaitForServiceCIDRsAfterAFailure(t *testing.T) {
	resource := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	for _, failure := range []error{
		apierrors.NewInternalError(errors.New("no")),
		apierrors.NewServiceUnavailable("no"),
		apierrors.NewTooManyRequestsError("no"),
		apierrors.NewServerTimeout(resource, "list", 0),
		fmt.Errorf("dial tcp: %w", syscall.ECONNREFUSED),
		fmt.Errorf("dial tcp: %w", syscall.EMFILE),
	} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel() // retries take seconds
			client := fake.NewClientset(service("shop", "web"), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}})
			var failures atomic.Int32
			client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
				return failures.Add(1) == 1, nil, failure
			})
			informers, _ := startInformers(t, client)
			await(t, "sync", informers.Loaded())
			if n := failures.Load(); n < 2 || len(informers.ServiceCIDRs()) != 1 {
				t.Errorf("synced after %d lists of ServiceCIDRs with %v, want the existing one", n, informers.ServiceCIDRs())
			}
		})
	}
}

func TestFailuresOfTheAPIServerAreReported(t *testing.T) {
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		client := fake.NewClientset()
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("no"))
		})
		failed := make(chan string, 1)
		informers, err := NewInformers(Config{Client: fakeClient(client), NodeName: "node-1", Tracker: newTracker(), Failed: func(r string, err error) {
			if err == nil {
				t.Errorf("the report of a failure of %s has no error", r)
			}
			select {
			case failed <- r:
			default:
			}
		}})
		lab.Must(t, err)
		run(t, informers)
		select {
		case got := <-failed:
			if got != resource {
				t.Errorf("a failure of %s is reported, but %s failed", got, resource)
			}
		case <-time.After(patient):
			t.Errorf("no report that the list of %s failed", resource)
		}
	}
}
