package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/seccomp"
)

// pause is what passes before something is tried again; a real kubelet waits longer each time.
const pause = 200 * time.Millisecond

// pod is a pod on the node.
type pod struct {
	*corev1.Pod
	kubelet *Kubelet
	cancel  context.CancelFunc
	ended   chan struct{} // closed when its programs have ended

	mu       sync.Mutex
	programs map[string]*program.Program // by container
	status   corev1.PodStatus
}

func (k *Kubelet) startPod(ctx context.Context, object *corev1.Pod) *pod {
	p := &pod{Pod: object, kubelet: k, ended: make(chan struct{}), programs: map[string]*program.Program{}}
	ctx, p.cancel = context.WithCancel(ctx)
	p.status.Phase = corev1.PodPending
	if object.Spec.HostNetwork {
		p.status.PodIP = k.Host.IPv4.String()
	}
	k.stopped.Go(func() {
		defer k.look()
		defer close(p.ended)
		p.run(ctx)
	})
	return p
}

// run is the life of a pod: first one container after the other, then all others at once.
func (p *pod) run(ctx context.Context) {
	for i := range p.Spec.InitContainers {
		if !p.runContainer(ctx, &p.Spec.InitContainers[i], corev1.RestartPolicyOnFailure) {
			return
		}
	}
	var all sync.WaitGroup
	for i := range p.Spec.Containers {
		all.Go(func() { p.runContainer(ctx, &p.Spec.Containers[i], p.Spec.RestartPolicy) })
	}
	all.Wait()
}

// runContainer runs a container until it has succeeded, or need not be run again, or the pod goes.
func (p *pod) runContainer(ctx context.Context, c *corev1.Container, policy corev1.RestartPolicy) (succeeded bool) {
	for ctx.Err() == nil {
		err := p.runOnce(ctx, c)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil && policy != corev1.RestartPolicyAlways, policy == corev1.RestartPolicyNever:
			p.ends(ctx, c, err)
			return err == nil
		}
		p.waits(ctx, c, err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return false
}

// runOnce runs a container's program once; a deleted pod gets SIGTERM, and SIGKILL after the grace period.
func (p *pod) runOnce(ctx context.Context, c *corev1.Container) error {
	running, err := p.start(ctx, c)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.programs[c.Name] = running
	p.mu.Unlock()
	if slices.ContainsFunc(p.Spec.Containers, func(main corev1.Container) bool { return main.Name == c.Name }) {
		go p.awaitReady(ctx, running, c)
	}
	select {
	case <-running.Ended():
		return running.Wait()
	case <-ctx.Done():
	}
	grace := 30 * time.Second
	if p.Spec.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	if err := running.Signal(syscall.SIGTERM); err == nil {
		select {
		case <-running.Ended():
		case <-time.After(grace):
		}
	}
	running.Kill()
	return ctx.Err()
}

// start makes a container and starts its program.
func (p *pod) start(ctx context.Context, c *corev1.Container) (*program.Program, error) {
	name, _, _ := strings.Cut(c.Image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	image, found := p.kubelet.Images[name]
	if !found {
		return nil, fmt.Errorf("pull image %s: there is none", c.Image)
	}
	dir := filepath.Join(p.kubelet.Dir, string(p.UID), c.Name)
	spec, err := p.spec(ctx, c, image, filepath.Join(dir, "root"))
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "spec.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	return program.Start(context.WithoutCancel(ctx), program.Config{
		Host: p.kubelet.Host, Path: p.kubelet.Container, Args: []string{file}, Log: filepath.Join(dir, "log"),
	})
}

func (p *pod) spec(ctx context.Context, c *corev1.Container, image Image, root string) (*Spec, error) {
	api, err := p.kubelet.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	values, err := environment(p.Pod, c, api)
	if err != nil {
		return nil, err
	}
	s := &Spec{Root: root, Env: slices.Clone(image.Env)}
	for name, value := range values {
		s.Env = append(s.Env, name+"="+value)
	}
	command := c.Command
	if len(command) == 0 {
		command = image.Entrypoint
	}
	for _, arg := range slices.Concat(command, c.Args) {
		s.Args = append(s.Args, expand(arg, values))
	}
	if err := s.secure(c.SecurityContext); err != nil {
		return nil, err
	}
	if s.Filter, err = p.kubelet.filter(ctx, c.SecurityContext); err != nil {
		return nil, err
	}
	if err := errors.Join(os.RemoveAll(root), os.CopyFS(root, os.DirFS(image.Root))); err != nil {
		return nil, fmt.Errorf("copy image: %w", err)
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		from, err := p.kubelet.volume(ctx, p.Pod, p.Spec.Volumes[i])
		if err != nil {
			return nil, err
		}
		readOnly := m.ReadOnly || p.Spec.Volumes[i].ConfigMap != nil || p.Spec.Volumes[i].Projected != nil
		s.Binds = append(s.Binds, Bind{From: from, To: m.MountPath, ReadOnly: readOnly})
	}
	return s, makeMountPoints(s)
}

// filter compiles a profile of kind Localhost. The kubelet finds it in /var/lib/kubelet/seccomp on the machine.
func (k *Kubelet) filter(ctx context.Context, c *corev1.SecurityContext) (seccomp.Filter, error) {
	if c == nil || c.SeccompProfile == nil || c.SeccompProfile.LocalhostProfile == nil {
		return nil, nil
	}
	profile, err := seccomp.Read(filepath.Join(k.Machine(), "var/lib/kubelet/seccomp", *c.SeccompProfile.LocalhostProfile))
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	return profile.Compile(ctx)
}

// makeMountPoints makes in the root what is mounted on, as the runtime does before the root becomes read-only.
func makeMountPoints(s *Spec) error {
	errs := []error{makeMountPoint(filepath.Join(s.Root, "dev/null"), false)}
	for _, dir := range []string{"proc", "sys", "tmp"} {
		errs = append(errs, makeMountPoint(filepath.Join(s.Root, dir), true))
	}
	for _, b := range s.Binds {
		info, err := os.Stat(b.From)
		if err != nil {
			return err
		}
		errs = append(errs, makeMountPoint(filepath.Join(s.Root, b.To), info.IsDir()))
	}
	return errors.Join(errs...)
}

// refresh brings the pod's volumes up to date with their ConfigMaps.
func (k *Kubelet) refresh(ctx context.Context, p *pod) error {
	p.mu.Lock()
	running := len(p.programs) > 0
	p.mu.Unlock()
	if !running {
		return nil
	}
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap != nil {
			if _, err := k.volume(ctx, p.Pod, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitReady waits until a container is ready: by its probe, or because it runs.
func (p *pod) awaitReady(ctx context.Context, running *program.Program, c *corev1.Container) {
	for c.ReadinessProbe != nil && p.kubelet.Probe(ctx, p.Pod, c.ReadinessProbe) != nil {
		select {
		case <-ctx.Done():
			return
		case <-running.Ended():
			return
		case <-time.After(pause):
		}
	}
	p.update(ctx, c.Name, func(s *corev1.ContainerStatus) {
		s.Ready, s.State = true, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	})
}

// Probe asks what a probe asks, once, as the kubelet of the node does. It knows probes by HTTP, which must answer in time.
func (k *Kubelet) Probe(ctx context.Context, object *corev1.Pod, probe *corev1.Probe) error {
	get := probe.HTTPGet
	if get == nil {
		return errors.New("a probe that isn't by HTTP: not done here")
	}
	host := get.Host
	if host == "" {
		host = k.Host.IPv4.String()
	}
	k.mu.Lock()
	p := k.running[object.UID]
	k.mu.Unlock()
	if p == nil {
		return fmt.Errorf("pod %s doesn't run", object.Name)
	}
	p.mu.Lock()
	running := p.programs[p.Spec.Containers[0].Name]
	p.mu.Unlock()
	if running == nil {
		return fmt.Errorf("the program of pod %s does not run yet", object.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s:%d%s", host, get.Port.IntValue(), get.Path)
	status, body, err := running.Get(ctx, url)
	if err == nil && (status < http.StatusOK || status >= http.StatusBadRequest) {
		err = fmt.Errorf("get %s: status %d: %s", url, status, body)
	}
	return err
}

func (p *pod) waits(ctx context.Context, c *corev1.Container, err error) {
	message := "ended"
	if err != nil {
		message = err.Error()
	}
	p.update(ctx, c.Name, func(s *corev1.ContainerStatus) {
		s.Ready, s.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Waiting", Message: message}}
		s.RestartCount++
	})
}

func (p *pod) ends(ctx context.Context, c *corev1.Container, err error) {
	p.update(ctx, c.Name, func(s *corev1.ContainerStatus) {
		end := &corev1.ContainerStateTerminated{Reason: "Completed"}
		if err != nil {
			end.Reason, end.ExitCode, end.Message = "Error", 1, err.Error()
		}
		s.Ready, s.State = false, corev1.ContainerState{Terminated: end}
	})
}

// update changes the status of a container, and writes that of the pod.
func (p *pod) update(ctx context.Context, container string, change func(*corev1.ContainerStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.status
	list, containers := &s.ContainerStatuses, p.Spec.Containers
	if slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == container }) {
		list, containers = &s.InitContainerStatuses, p.Spec.InitContainers
	}
	i := slices.IndexFunc(*list, func(c corev1.ContainerStatus) bool { return c.Name == container })
	if i < 0 {
		image := containers[slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == container })].Image
		*list = append(*list, corev1.ContainerStatus{Name: container, Image: image})
		i = len(*list) - 1
	}
	change(&(*list)[i])
	s.Phase, s.Conditions = p.sum()
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // an error is that the pod has gone
		object, err := p.kubelet.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil || object.UID != p.UID {
			return apierrors.NewNotFound(corev1.Resource("pods"), p.Name)
		}
		object.Status = *s.DeepCopy()
		_, err = p.kubelet.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// sum is the pod's phase and whether it is ready, from its containers.
func (p *pod) sum() (corev1.PodPhase, []corev1.PodCondition) {
	ready, ended, failed, began := len(p.status.ContainerStatuses) == len(p.Spec.Containers), true, false, false
	for _, c := range p.status.ContainerStatuses {
		ready = ready && c.Ready
		ended = ended && c.State.Terminated != nil
		failed = failed || c.State.Terminated != nil && c.State.Terminated.ExitCode != 0
		began = began || c.Ready || c.RestartCount > 0
	}
	phase := corev1.PodPending
	switch {
	case len(p.status.ContainerStatuses) == 0:
	case ended && failed:
		phase = corev1.PodFailed
	case ended:
		phase = corev1.PodSucceeded
	case began:
		phase = corev1.PodRunning
	}
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if ready {
		condition.Status = corev1.ConditionTrue
	}
	return phase, []corev1.PodCondition{condition}
}
