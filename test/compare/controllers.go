package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// controllerFlags are the measured flags of kube-controller-manager. The first row has its defaults.
var controllerFlags = []string{
	"", "--endpointslice-updates-batch-period=1s", "--max-endpoints-per-slice=50",
	"--endpointslice-updates-batch-period=1s --max-endpoints-per-slice=50",
}

// A Deployment replaces its pods: each step adds a pod, and then deletes the oldest one.
const (
	rollingPods = 100
	rollingStep = 200 * time.Millisecond
)

// measureControllers measures the load of the API server by a rolling update of one Service, with different flags of
// the EndpointSlice controller. The cluster has no other Services, because the controller would delete their endpoints.
func measureControllers(ctx context.Context, s settings) error {
	fill := func(w *world) error { return w.fill(ctx, func() { w.putNodes(max(s.controllers, rollingPods)) }) }
	return inWorld(ctx, size{endpoints: 1}, lab.Config{}, fill, func(w *world, _, dir string) error {
		c := &crowd{world: w, ctx: ctx, dir: dir}
		if err := c.prepare(); err != nil {
			return err
		}
		nodes, err := c.startAll(s.controllers, func(i int) (*node, error) { return c.nftproxyNode(i, "") })
		if err != nil {
			return err
		}
		defer stopAll(nodes)
		for i := range rollingPods {
			c.store.Put(rollingPod(i))
		}
		if err := errors.Join(c.store.Flush(), c.Apply(ctx, rollingService())); err != nil {
			return err
		}
		c.rows = []string{
			fmt.Sprintf("| Flags of kube-controller-manager, %d nodes | changes of EndpointSlices | bytes to a node | "+
				"processor time of kube-apiserver and etcd, s |", s.controllers),
			"|---|---|---|---|",
		}
		for turn, flags := range controllerFlags {
			if err := c.rollPods(turn, s.controllers, flags); err != nil {
				return fmt.Errorf("with %q: %w", flags, err)
			}
		}
		text := strings.Join(c.rows, "\n") + "\n"
		fmt.Print(text)
		if s.output == "" {
			return nil
		}
		return page.Write(filepath.Join(s.output, "docs/scale.md"), "controllers", text)
	}, watchersFlags...)
}

func rollingService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "rolling"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "rolling"}, Ports: []corev1.ServicePort{{Name: "http", Port: servicePort}},
		},
	}
}

// rollingPod returns a ready pod of the Service rolling.
func rollingPod(i int) *corev1.Pod {
	name := "rolling-" + suffix("rolling", 10) + "-" + suffix(fmt.Sprint(i), 5)
	address := fmt.Sprintf("10.244.%d.%d", i/250, 1+i%250)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, UID: uid("Pod", name), CreationTimestamp: metav1.Now(),
			Labels: rollingService().Spec.Selector,
		},
		Spec: corev1.PodSpec{NodeName: crowdNode(i % rollingPods), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// rollPods replaces all pods of the Service, and adds a row. The EndpointSlice controller runs with flags.
func (c *crowd) rollPods(turn, nodes int, flags string) error {
	admin := filepath.Join(c.dir, "admin.conf")
	if err := c.Kubeconfig(admin, true); err != nil {
		return err
	}
	argv := append([]string{
		"netns", "exec", c.lab.Node.Netns, "bin/kubernetes/kube-controller-manager", "--kubeconfig=" + admin,
		"--controllers=endpointslice-controller", "--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir=" + c.dir,
	}, strings.Fields(flags)...)
	controllers, err := cluster.StartProcess("kube-controller-manager",
		filepath.Join(c.dir, fmt.Sprintf("controllers-%d.log", turn)), exec.Command("ip", argv...))
	if err != nil {
		return err
	}
	defer controllers.Kill()
	first := turn * rollingPods
	served := func(ctx context.Context) error { _, err := c.generations(ctx, first); return err }
	if err := controllers.Await(c.ctx, served); err != nil {
		return err
	}
	const settled = 3 * time.Second
	if err := wait(c.ctx, settled); err != nil {
		return err
	}
	before, err := c.generations(c.ctx, first)
	if err != nil {
		return err
	}
	l, _, err := c.during(func() error {
		for range rollingPods {
			c.store.Put(rollingPod(first + rollingPods))
			c.store.Delete(rollingPod(first))
			if first++; c.store.Flush() != nil {
				break
			}
			if err := wait(c.ctx, rollingStep); err != nil {
				return err
			}
		}
		return errors.Join(c.store.Flush(), controllers.Await(c.ctx, served), wait(c.ctx, settled))
	})
	if err != nil {
		return err
	}
	after, err := c.generations(c.ctx, first)
	if err != nil {
		return err
	}
	changes := 0
	for name, generation := range after {
		changes += int(generation - before[name])
	}
	name := "defaults"
	if flags != "" {
		name = "`" + flags + "`"
	}
	row := fmt.Sprintf("| %s | %d | %.0f kB | %.2f |", name, changes,
		float64(l.received)/float64(nodes)/1e3, l.cpu.Seconds())
	log.Print(row)
	c.rows = append(c.rows, row)
	return nil
}

// generations returns the number of changes of each EndpointSlice of the Service since its creation. It fails unless
// the EndpointSlices have the endpoints of all pods from the first one on.
func (c *crowd) generations(ctx context.Context, first int) (map[string]int64, error) {
	slices, err := c.Client().DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=rolling",
	})
	if err != nil {
		return nil, err
	}
	missing, all := map[string]bool{}, map[string]int64{}
	for i := range rollingPods {
		missing[rollingPod(first+i).Name] = true
	}
	for _, slice := range slices.Items {
		all[slice.Name] = slice.Generation
		for _, e := range slice.Endpoints {
			if !missing[e.TargetRef.Name] {
				return nil, fmt.Errorf("EndpointSlice %s still has pod %s", slice.Name, e.TargetRef.Name)
			}
			delete(missing, e.TargetRef.Name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%d pods are in no EndpointSlice", len(missing))
	}
	return all, nil
}
