package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// program is the path of kube-nftproxy in its image.
const program = "/usr/local/bin/kube-nftproxy"

// cluster runs commands in the pods of kube-nftproxy.
type cluster struct {
	config                         *rest.Config
	client                         kubernetes.Interface
	namespace, selector, container string
}

// proxyPod is a pod of kube-nftproxy.
type proxyPod struct {
	node, name, container string
	// phase is the phase of the pod, or "" if the pod runs.
	phase string
}

// pods returns the pods of all nodes, or only of the given node.
func (c *cluster) pods(ctx context.Context, node string) (list []proxyPod, err error) {
	options := metav1.ListOptions{LabelSelector: c.selector, ResourceVersion: "0"}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	found, err := c.client.CoreV1().Pods(c.namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	for i := range found.Items {
		p := &found.Items[i]
		if p.Spec.NodeName == "" || p.DeletionTimestamp != nil {
			continue
		}
		one := proxyPod{node: p.Spec.NodeName, name: p.Name, container: c.container}
		if one.container == "" {
			one.container = p.Spec.Containers[0].Name
		}
		if p.Status.Phase != "Running" {
			one.phase = string(p.Status.Phase)
		}
		list = append(list, one)
	}
	return list, nil
}

// podOf returns the pod of a node.
func (c *cluster) podOf(ctx context.Context, node string) (proxyPod, error) {
	list, err := c.pods(ctx, node)
	if err != nil {
		return proxyPod{}, err
	}
	for _, p := range list {
		if p.phase == "" {
			return p, nil
		}
	}
	return proxyPod{}, fmt.Errorf("no pod of kube-nftproxy runs on node %s (namespace %s, selector "+
		"%q)", node, c.namespace, c.selector)
}

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

// Write implements io.Writer.
func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// run runs a command in a pod, and returns its exit code. It returns an error if it cannot run the command.
func (c *cluster) run(ctx context.Context, p proxyPod, args []string, s remotecommand.StreamOptions) (code int, err error) {
	if p.phase != "" {
		return exitUnable, fmt.Errorf("pod %s is %s", p.name, p.phase)
	}
	request := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(c.namespace).Name(p.name).SubResource("exec").
		Param("container", p.container).Param("stdout", "true")
	for name, wanted := range map[string]bool{"stdin": s.Stdin != nil, "stderr": !s.Tty, "tty": s.Tty} {
		if wanted {
			request.Param(name, "true")
		}
	}
	for _, arg := range append([]string{program}, args...) {
		request.Param("command", arg)
	}
	if s.Stdout == s.Stderr { // two goroutines write to it
		both := &lockedWriter{to: s.Stdout}
		s.Stdout, s.Stderr = both, both
	}
	if s.Tty {
		s.Stderr = nil
	}
	// An older API server, or a proxy before it, may support only SPDY. kubectl has the same fallback.
	spdy, err := remotecommand.NewSPDYExecutor(c.config, "POST", request.URL())
	if err != nil {
		return exitUnable, err
	}
	socket, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return exitUnable, err
	}
	either, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return exitUnable, err
	}
	err = either.StreamWithContext(ctx, s)
	if ended := (exec.CodeExitError{}); errors.As(err, &ended) {
		return ended.Code, nil
	}
	if err != nil && strings.Contains(err.Error(), "no such file") {
		err = fmt.Errorf("pod %s has no %s: it is the pod of another program", p.name, program)
	}
	if err != nil {
		return exitUnable, err
	}
	return exitFine, nil
}
