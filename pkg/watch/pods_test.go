package watch

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// ingress returns a pod on node-1 with a host port.
func ingress() *corev1.Pod {
	port := corev1.ContainerPort{Name: "http", ContainerPort: 8080, HostPort: 80, Protocol: corev1.ProtocolTCP}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ingress", Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
			{Name: "proxy", Image: "i", Ports: []corev1.ContainerPort{port, {ContainerPort: 9000}}},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.10"}}},
	}
}

// TestPods: the source reads the pods of this node only for host ports, and stores only those with host ports to serve.
func TestPods(t *testing.T) {
	ready := with(ingress(), func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} })
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, ingress(),
		with(ingress(), func(p *corev1.Pod) { p.Name, p.Spec.NodeName = "elsewhere", "node-2" }),
		with(ingress(), func(p *corev1.Pod) { p.Name, p.Spec.HostNetwork = "host", true }),
		with(ingress(), func(p *corev1.Pod) { p.Name, p.Status.PodIPs = "starting", nil }),
		with(ingress(), func(p *corev1.Pod) { p.Name, p.Status.Phase = "ended", corev1.PodFailed }),
		with(ingress(), func(p *corev1.Pod) { p.Name, p.Spec.Containers[0].Ports = "plain", nil }))
	selected := make(chan string, 1)
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case selected <- action.(clienttesting.ListActionImpl).GetListRestrictions().Fields.String():
		default:
		}
		return false, nil, nil
	})
	watching := watchAll(client, "pods")
	tracker := newTracker()
	informers, err := NewInformers(Config{
		Client: fakeClient(client), NodeName: "node-1", HostPorts: true, Tracker: tracker,
	})
	lab.Must(t, err)
	run(t, informers)
	await(t, "sync", informers.Loaded())
	await(t, "watch", watching)
	lab.Same(t, "spec.nodeName=node-1", <-selected, "the selection")
	name := types.NamespacedName{Namespace: "shop", Name: "pod/ingress"}
	lab.Same(t, []types.NamespacedName{name}, informers.Services(), "pods with host ports")
	stored := informers.Get(name).Pod
	lab.Same(t, []corev1.Container{{Ports: []corev1.ContainerPort{
		{ContainerPort: 8080, HostPort: 80, Protocol: corev1.ProtocolTCP},
	}}}, stored.Spec.Containers, "the stored containers")

	// A change of the conditions causes no mark. The deletion follows, because its mark would arrive later.
	awaitMarks(t, tracker, marked(name))
	pods := client.CoreV1().Pods("shop")
	lab.Must(t, lab.Err(pods.UpdateStatus(t.Context(), ready, metav1.UpdateOptions{})))
	lab.Must(t, pods.Delete(t.Context(), "ingress", metav1.DeleteOptions{}))
	if got := awaitMarks(t, tracker, marked(name)); got.ServiceChanges != 1 {
		t.Errorf("a new condition and a deletion were %d changes, want 1", got.ServiceChanges)
	}
	lab.Same(t, model.Objects{}, informers.Get(name), "the deleted pod")
}

// TestPodsForbidden: without the permission to read pods, the source has all Services, and reports the failure.
func TestPodsForbidden(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, service("shop", "web"))
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no role"))
	})
	failed := make(chan string, 1)
	informers, err := NewInformers(Config{
		Client: fakeClient(client), NodeName: "node-1", HostPorts: true, Tracker: newTracker(),
		Failed: func(resource string, _ error) {
			select {
			case failed <- resource:
			default:
			}
		},
	})
	lab.Must(t, err)
	run(t, informers)
	await(t, "sync", informers.Loaded())
	lab.Same(t, []types.NamespacedName{web}, informers.Services(), "Services")
	lab.Same(t, podsResource, <-failed, "the resource that cannot be read")
}

// TestHostilePod: a pod with 1.5 MB of host ports is stored up to the limit, and with short texts.
func TestHostilePod(t *testing.T) {
	cfg := Config{NodeName: "node-1", HostPorts: true}
	const limit = model.MostHostPorts
	pod := with(ingress(), func(p *corev1.Pod) {
		long := p.Spec.Containers[0].Ports[0]
		long.HostIP, long.Protocol = strings.Repeat("1", 1<<20), corev1.Protocol(strings.Repeat("T", 1<<20))
		list := slices.Repeat(p.Spec.Containers[0].Ports[:1], 100_000)
		p.Spec.Containers[0].Ports = append([]corev1.ContainerPort{long}, list...)
		p.Status.PodIPs = slices.Repeat(p.Status.PodIPs, 1000)
	})
	stored, err := cfg.transformer().transform(pod)
	lab.Must(t, err)
	got := stored.(*object).value.(*corev1.Pod)
	port := got.Spec.Containers[0].Ports[0]
	if n := len(got.Spec.Containers[0].Ports); n != limit+1 || len(got.Status.PodIPs) != model.MostFamilies+1 {
		t.Errorf("%d host ports and %d addresses are stored, want one more than each limit", n, len(got.Status.PodIPs))
	}
	if max(len(port.HostIP), len(port.Protocol)) > 2*model.LongestText {
		t.Errorf("texts of %d and %d bytes are stored", len(port.HostIP), len(port.Protocol))
	}
	s := model.Build(model.ObjectsOfPod(got), model.Node{Name: "node-1"}, model.Options{})
	if len(s.Ports) > limit || len(s.Problems) > 50 {
		t.Errorf("%d ports and %d problems", len(s.Ports), len(s.Problems))
	}
}
