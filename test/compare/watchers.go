package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// watchersFlags enable the queues of the API server, with its default limits.
var watchersFlags = []string{
	"--enable-priority-and-fairness=true", "--max-requests-inflight=400", "--max-mutating-requests-inflight=200",
}

const (
	account     = "system:serviceaccount:kube-system:"
	flowControl = "kube-nftproxy with deploy/flow-control"
	snapshots   = "with snapshots"
)

// crowd is a number of nodes as the API server sees them: one client with a connection for each, in this process, which
// stores the objects and programs nothing.
type crowd struct {
	*world
	ctx  context.Context
	dir  string
	rows []string
	// nodes are the numbers of nodes of kube-nftproxy that started. cpu is the processor time of the API server and etcd
	// for each number, in seconds, and megabytes are the bytes to all nodes.
	nodes, cpu, megabytes []float64

	lists, refused, received atomic.Int64
}

// measureWatchers measures the load of the API server by numbers of nodes, and the time of a pod that is created
// beside them.
func measureWatchers(ctx context.Context, s settings) error {
	var z size
	if _, err := fmt.Sscanf(cmp.Or(s.only, "1000x10"), "%dx%d", &z.services, &z.endpoints); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var numbers []int
	for text := range strings.SplitSeq(s.watchers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-watchers: %w", err)
		}
		numbers = append(numbers, n)
	}
	most := slices.Max(numbers)
	fill := func(w *world) error { return w.fill(ctx, func() { w.putNodes(most) }) }
	return inWorld(ctx, z, lab.Config{}, fill, func(w *world, _, dir string) error {
		// Hundreds of clients would log that they restart.
		c := &crowd{world: w, ctx: klog.NewContext(ctx, klog.Logger{}), dir: dir}
		if err := c.prepare(); err != nil {
			return err
		}
		if wanted(s.programs, "roll-out") {
			if err := c.rollOut(min(most, rollOutNodes)); err != nil {
				return err
			}
		}
		c.rows = append(c.rows, watchersHead)
		for _, n := range numbers {
			if err := c.starts(s, n); err != nil {
				return err
			}
		}
		c.rows = append(c.rows, c.model()...)
		text := strings.Join(c.rows, "\n") + "\n"
		fmt.Print(text)
		if s.output == "" {
			return nil
		}
		return page.Write(filepath.Join(s.output, "docs/scale.md"), "watchers", text)
	}, watchersFlags...)
}

func crowdNode(i int) string { return fmt.Sprintf("node-%d", 100+i) }

func (w *world) putNodes(n int) {
	for i := range n {
		w.store.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: crowdNode(i), UID: "u", CreationTimestamp: metav1.Now(),
		}})
	}
}

// prepare creates the objects of the accounts.
func (c *crowd) prepare() error {
	client := c.Client()
	_, err := client.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-nftproxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "kube-nftproxy"},
			{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().ServiceAccounts("default").Create(c.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	return err
}

// flowControl creates or deletes the objects of deploy/flow-control.
func (c *crowd) flowControl(on bool) error {
	data, err := os.ReadFile("deploy/flow-control/flowcontrol.yaml")
	if err != nil {
		return err
	}
	client := c.Client().FlowcontrolV1()
	if !on {
		return errors.Join(client.FlowSchemas().Delete(c.ctx, "kube-nftproxy", metav1.DeleteOptions{}),
			client.PriorityLevelConfigurations().Delete(c.ctx, "kube-nftproxy", metav1.DeleteOptions{}))
	}
	parts := bytes.Split(data, []byte("\n---\n"))
	var level flowcontrolv1.PriorityLevelConfiguration
	var schema flowcontrolv1.FlowSchema
	if err := errors.Join(yaml.Unmarshal(parts[0], &level), yaml.Unmarshal(parts[1], &schema)); err != nil {
		return err
	}
	_, err = client.PriorityLevelConfigurations().Create(c.ctx, &level, metav1.CreateOptions{})
	if err == nil {
		_, err = client.FlowSchemas().Create(c.ctx, &schema, metav1.CreateOptions{})
	}
	const applied = 2 * time.Second // until the API server uses the objects
	return errors.Join(err, wait(c.ctx, applied))
}

// connection returns the configuration of a connection of its own, as a user, with the limits of requests of the
// default configuration.
func (c *crowd) connection(user string) (*clientrest.Config, error) {
	cfg := c.Admin()
	tls, err := clientrest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	dial := cfg.Dial
	cfg.Transport = &http.Transport{
		TLSClientConfig: tls, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return countedConn{conn, &c.received}, err
		},
	}
	cfg.TLSClientConfig, cfg.Dial = clientrest.TLSClientConfig{}, nil
	cfg.Impersonate.UserName = user
	cfg.QPS, cfg.Burst = 5, 10
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return countedRequests{next, c} })
	return cfg, nil
}

// countedConn counts received bytes.
type countedConn struct {
	net.Conn
	received *atomic.Int64
}

// Read implements net.Conn.
func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

// countedRequests counts lists, and requests that the API server refuses with 429.
type countedRequests struct {
	http.RoundTripper
	of *crowd
}

// RoundTrip implements http.RoundTripper.
func (c countedRequests) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	withList := query.Get("sendInitialEvents") == "true" // a watch that begins with a list
	one := query.Get("limit") == "1" || strings.Contains(query.Get("fieldSelector"), "metadata.name=")
	if r.Method == http.MethodGet && !one && (query.Get("watch") == "" || withList) {
		c.of.lists.Add(1)
	}
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		c.of.refused.Add(1)
	}
	return resp, err
}

// node is a client of one node. loaded is closed when it has all objects. stop ends it.
type node struct {
	loaded <-chan struct{}
	stop   func()
}

// nftproxyNode starts the client of kube-nftproxy, with a snapshot if folder is not empty.
func (c *crowd) nftproxyNode(i int, folder string) (*node, error) {
	cfg, err := c.connection(account + "kube-nftproxy")
	if err != nil {
		return nil, err
	}
	cfg.AcceptContentTypes = kubeapi.Accepted(cfg.ContentType)
	cfg.Wrap(watch.Impatient)
	client, err := kubeapi.New(cfg)
	if err != nil {
		return nil, err
	}
	source, err := watch.NewInformers(watch.Config{
		Client: client, NodeName: crowdNode(i), Tracker: track.New(time.Now(), time.Now), SnapshotDir: folder, Cluster: "c",
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = source.Run(ctx) // it always returns nil
	}()
	return &node{source.Loaded(), func() {
		cancel()
		<-done
		cfg.Transport.(*http.Transport).CloseIdleConnections()
	}}, nil
}

// kubeProxyNode starts the client of kube-proxy: shared informers, which store only names here.
func (c *crowd) kubeProxyNode(i int) (*node, error) {
	cfg, err := c.connection(account + "kube-proxy")
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	name := func(item any) (any, error) {
		o, err := meta.Accessor(item)
		if err != nil {
			return nil, err
		}
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), ResourceVersion: o.GetResourceVersion(),
		}}, nil
	}
	services := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(name),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
		}))
	nodes := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + crowdNode(i) }))
	others := informers.NewSharedInformerFactory(client, 0)
	all := []cache.SharedIndexInformer{
		services.Core().V1().Services().Informer(), services.Discovery().V1().EndpointSlices().Informer(),
		nodes.Core().V1().Nodes().Informer(), others.Networking().V1().ServiceCIDRs().Informer(),
	}
	ctx, cancel := context.WithCancel(c.ctx)
	loaded := make(chan struct{})
	var running sync.WaitGroup
	var synced []cache.InformerSynced
	for _, informer := range all {
		synced = append(synced, informer.HasSynced)
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			close(loaded)
		}
	})
	return &node{loaded, func() {
		cancel()
		running.Wait()
		cfg.Transport.(*http.Transport).CloseIdleConnections()
	}}, nil
}

// load returns the present totals.
func (c *crowd) load() (l crowdLoad, err error) {
	l = crowdLoad{lists: c.lists.Load(), refused: c.refused.Load(), received: c.received.Load()}
	l.cpu, err = c.spent()
	return l, err
}

// crowdLoad is what clients have made the API server and etcd do.
type crowdLoad struct {
	lists, refused, received int64
	cpu                      time.Duration
}

// during returns the load, and the time, of an action.
func (c *crowd) during(do func() error) (l crowdLoad, took time.Duration, err error) {
	before, err := c.load()
	if err != nil {
		return l, 0, err
	}
	start := time.Now()
	err = do()
	took = time.Since(start)
	after, failed := c.load()
	return crowdLoad{after.lists - before.lists, after.refused - before.refused, after.received - before.received,
		after.cpu - before.cpu}, took, errors.Join(err, failed)
}

// pods creates pods as a controller does, one after the other, until stop is called, which returns the times in
// milliseconds.
func (c *crowd) pods() (stop func() ([]float64, error), err error) {
	cfg := c.Admin()
	cfg.Impersonate.UserName = account + "replicaset-controller"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	var times []float64
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "beside-"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: new(bool)}}
		for ctx.Err() == nil && failed == nil {
			start := time.Now()
			_, failed = client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
			times = append(times, time.Since(start).Seconds()*1e3)
			_ = wait(ctx, 50*time.Millisecond)
		}
	}()
	return func() ([]float64, error) {
		cancel()
		<-done
		return times, failed
	}, nil
}

// median returns the median and the 99th percentile of times.
func median(times []float64) string {
	return fmt.Sprintf("%.0f, %.0f", quantileOf(times, 0.5), quantileOf(times, 0.99))
}

const watchersHead = `| Nodes | Client | all have all objects after, s | processor time for a node, s | ` +
	`bytes to a node | answers 429 | a pod beside none, ms: median, 99 of 100 | a pod beside the starts, ms | ` +
	`a change: bytes to a node | a change: processor time for a node, ms |
|---|---|---|---|---|---|---|---|---|---|`

// starts measures the start of a number of nodes, with each kind of client.
func (c *crowd) starts(s settings, n int) error {
	for _, client := range []string{kubeNftproxy, flowControl, kubeProxyNftables} {
		if !wanted(s.programs, client) {
			continue
		}
		if client == flowControl {
			if err := c.flowControl(true); err != nil {
				return err
			}
		}
		start := func(i int) (*node, error) { return c.nftproxyNode(i, "") }
		if client == kubeProxyNftables {
			start = c.kubeProxyNode
		}
		if err := c.start(n, client, start); err != nil {
			return fmt.Errorf("%d × %s: %w", n, client, err)
		}
		if client == flowControl {
			if err := c.flowControl(false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *crowd) start(n int, client string, start func(i int) (*node, error)) error {
	const idle = 5 * time.Second
	stop, err := c.pods()
	if err != nil {
		return err
	}
	if err := wait(c.ctx, idle); err != nil {
		return err
	}
	alone, err := stop()
	if err != nil {
		return err
	}
	if stop, err = c.pods(); err != nil {
		return err
	}
	var nodes []*node
	l, took, err := c.during(func() error { nodes, err = c.startAll(n, start); return err })
	if err != nil {
		return err
	}
	beside, err := stop()
	if err != nil {
		return err
	}
	changed, _, err := c.during(func() error { return c.change(n) })
	if err != nil {
		return err
	}
	each := float64(n)
	row := fmt.Sprintf("| %d | %s | %.1f | %.3f | %.0f kB | %d | %s | %s | %.1f kB | %.2f |", n, client, took.Seconds(),
		l.cpu.Seconds()/each, float64(l.received)/each/1e3, l.refused, median(alone), median(beside),
		float64(changed.received)/each/changedSlices/1e3, changed.cpu.Seconds()*1e3/each/changedSlices)
	log.Print(row)
	c.rows = append(c.rows, row)
	if client == kubeNftproxy {
		c.nodes, c.cpu = append(c.nodes, each), append(c.cpu, l.cpu.Seconds())
		c.megabytes = append(c.megabytes, float64(l.received)/1e6)
	}
	stopAll(nodes)
	return nil
}

// model returns the load of more nodes that start at once, as a table. It has the slopes of the straight lines that fit
// the measured points.
func (c *crowd) model() []string {
	if len(c.nodes) < 3 {
		return nil
	}
	rows := []string{"", "| Nodes that start at once (model) | processor time, s | bytes |", "|---|---|---|"}
	cpu, megabytes := slopeOf(c.nodes, c.cpu), slopeOf(c.nodes, c.megabytes)
	for _, n := range []float64{1000, 5000, 10_000} {
		rows = append(rows, fmt.Sprintf("| %.0f | %.0f | %.1f GB |", n, n*cpu, n*megabytes/1e3))
	}
	return rows
}

// startAll starts nodes at once, and waits until all of them have all objects.
func (c *crowd) startAll(n int, start func(i int) (*node, error)) (nodes []*node, err error) {
	for i := range n {
		one, err := start(i)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, one)
	}
	for _, one := range nodes {
		select {
		case <-one.loaded:
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	}
	return nodes, nil
}

func stopAll(nodes []*node) {
	var all sync.WaitGroup
	for _, one := range nodes {
		all.Go(one.stop)
	}
	all.Wait()
}

// changedSlices is the number of changed EndpointSlices.
const changedSlices = 20

// change changes EndpointSlices, and waits until n nodes receive only bookmarks of their watches.
func (c *crowd) change(n int) error {
	for range changedSlices {
		c.store.Put(c.slice(c.spread(c.rounds), c.next(), c.endpoints))
		if err := c.store.Flush(); err != nil {
			return err
		}
	}
	const interval, bookmarks = 2 * time.Second, 1000 // bytes to a node in the interval
	for {
		before := c.received.Load()
		if err := wait(c.ctx, interval); err != nil {
			return err
		}
		if c.received.Load()-before < int64(n*bookmarks) {
			return nil
		}
	}
}

// rollOutNodes is the largest number of nodes of a roll-out.
const rollOutNodes = 200

// rollOut measures the restart of a number of nodes, in twenty waves, without and with snapshots.
func (c *crowd) rollOut(n int) error {
	const head = "| Roll-out to %d nodes | lists of a node | bytes to a node | processor time for a node, s |"
	c.rows = append(c.rows, fmt.Sprintf(head, n), "|---|---|---|---|")
	for _, how := range []string{"without snapshots", snapshots} {
		start := func(i int) (*node, error) {
			folder := ""
			if how == snapshots {
				folder = filepath.Join(c.dir, crowdNode(i))
			}
			return c.nftproxyNode(i, folder)
		}
		nodes, err := c.startAll(n, start)
		if err != nil {
			return err
		}
		if err := c.change(n); err != nil {
			return err
		}
		l, took, err := c.during(func() error {
			wave := max(1, n/20)
			for from := 0; from < n; from += wave {
				to := min(n, from+wave)
				stopAll(nodes[from:to])
				fresh, err := c.startAll(to-from, func(i int) (*node, error) { return start(from + i) })
				if err != nil {
					return err
				}
				copy(nodes[from:], fresh)
			}
			return nil
		})
		if err != nil {
			return err
		}
		each := float64(n)
		row := fmt.Sprintf("| %s | %.1f | %.1f kB | %.3f |", how, float64(l.lists)/each, float64(l.received)/each/1e3,
			l.cpu.Seconds()/each)
		log.Print(row, " after ", took)
		c.rows = append(c.rows, row)
		stopAll(nodes)
	}
	c.rows = append(c.rows, "")
	return nil
}
