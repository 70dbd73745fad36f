package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// Config says on which node of which cluster to run pods.
type Config struct {
	Cluster *cluster.Cluster
	// Host is the node; Node is the name of its object, which has to be there.
	Host *lab.Host
	Node string
	// Dir is a scratch folder.
	Dir string
	// Container is the path of the command container, see Build.
	Container string
	// Images are the images on the node by name, without tag.
	Images map[string]Image
}

// Image is what a container's root is a copy of.
type Image struct {
	Root string
	// Entrypoint is executed where a container has no command.
	Entrypoint []string
	// Env are the image's variables, as in name=value.
	Env []string
}

// Build builds the command container of the module around the working directory into a folder, and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return program.BuildCommand(ctx, dir, "test/kubelet/container")
}

// Kubelet runs pods on a node. Its methods may be called from several goroutines.
type Kubelet struct {
	Config
	client  kubernetes.Interface
	kick    chan struct{} // holds one when something may have to be done
	cancel  context.CancelFunc
	stopped sync.WaitGroup
	server  *httptest.Server

	daemonSets cache.Store
	pods       cache.Store
	nodes      cache.Store

	mu      sync.Mutex
	running map[types.UID]*pod
}

// Start begins to run pods, until Stop.
func Start(c Config) (*Kubelet, error) {
	k := &Kubelet{Config: c, client: c.Cluster.Client(), kick: make(chan struct{}, 1), running: map[types.UID]*pod{}}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	if err := k.prepare(ctx); err != nil {
		cancel()
		return nil, err
	}
	server, err := k.serve(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	k.server = server
	factory := informers.NewSharedInformerFactory(k.client, 0)
	follow := func(i cache.SharedIndexInformer) cache.Store {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { k.look() }, UpdateFunc: func(_, _ any) { k.look() }, DeleteFunc: func(any) { k.look() },
		})
		if err != nil {
			panic(err) // only once the informer has been stopped
		}
		return i.GetStore()
	}
	k.daemonSets = follow(factory.Apps().V1().DaemonSets().Informer())
	k.pods = follow(factory.Core().V1().Pods().Informer())
	k.nodes = follow(factory.Core().V1().Nodes().Informer())
	follow(factory.Core().V1().ConfigMaps().Informer())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	k.stopped.Go(func() { k.run(ctx) })
	return k, nil
}

// Stop kills all programs.
func (k *Kubelet) Stop() {
	k.cancel()
	k.server.CloseClientConnections()
	k.server.Close()
	k.stopped.Wait()
}

// prepare makes what other controllers make for all pods: the ServiceAccount that they have if they name none, and the
// ConfigMap by which they know the API server's certificate.
func (k *Kubelet) prepare(ctx context.Context) error {
	for _, namespace := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
		authority := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kube-root-ca.crt"},
			Data:       map[string]string{"ca.crt": string(k.Cluster.Admin().CAData)},
		}
		_, err := k.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
		if err == nil {
			_, err = k.client.CoreV1().ConfigMaps(namespace).Create(ctx, authority, metav1.CreateOptions{})
		}
		if err != nil {
			return fmt.Errorf("prepare namespace %s: %w", namespace, err)
		}
	}
	return nil
}

func (k *Kubelet) look() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

func (k *Kubelet) run(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		case <-again.C:
		}
		// An error is one of a cache that lags behind, or of an object that waits for another: both get another chance.
		if err := errors.Join(k.runDaemonSets(ctx), k.runPods(ctx)); err != nil {
			again.Reset(100 * time.Millisecond)
		}
	}
}

func items[T any](s cache.Store) (list []T) {
	for _, o := range s.List() {
		list = append(list, o.(T))
	}
	return list
}

// runPods starts the pods that are bound to the node, and ends those that are being deleted.
func (k *Kubelet) runPods(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	gone := maps.Clone(k.running)
	var errs []error
	for _, p := range items[*corev1.Pod](k.pods) {
		if p.Spec.NodeName != k.Node {
			continue
		}
		delete(gone, p.UID)
		r := k.running[p.UID]
		switch {
		case r == nil && p.DeletionTimestamp == nil:
			k.running[p.UID] = k.startPod(ctx, p)
		case p.DeletionTimestamp != nil:
			errs = append(errs, k.endPod(ctx, r, p))
		default:
			errs = append(errs, k.refresh(ctx, r))
		}
	}
	for uid, r := range gone {
		r.cancel()
		delete(k.running, uid)
	}
	return errors.Join(errs...)
}

// endPod lets a pod's programs end, and the object go once they have.
func (k *Kubelet) endPod(ctx context.Context, r *pod, p *corev1.Pod) error {
	if r != nil {
		r.cancel()
		select {
		case <-r.ended:
		default:
			return nil // it calls look when it ends
		}
	}
	now := int64(0)
	options := metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	if err := k.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, options); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// Program returns the program that a container runs at the moment, or ran last; nil for none so far.
func (k *Kubelet) Program(p *corev1.Pod, container string) *program.Program {
	k.mu.Lock()
	r := k.running[p.UID]
	k.mu.Unlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.programs[container]
}
