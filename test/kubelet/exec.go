package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// protocolV4 is the protocol of kubectl exec in which the exit code comes as a Status at the end (k8s.io/kubelet,
// pkg/cri/streaming/remotecommand).
const protocolV4 = "v4.channel.k8s.io"

// serve answers the API server's requests for kubectl exec, logs and port-forward, and writes where into the Node.
func (k *Kubelet) serve(ctx context.Context) (*httptest.Server, error) {
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /exec/{namespace}/{pod}/{container}":         k.exec,
		"GET /containerLogs/{namespace}/{pod}/{container}": k.logs,
		"/portForward/{namespace}/{pod}":                   k.forward,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := answer(w, r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
	}
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close() // it is in the test's namespace
	err := k.Host.Do(func() (err error) {
		server.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(k.Host.IPv4.String(), "0"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve the API server: %w", err)
	}
	server.StartTLS()
	port := int32(server.Listener.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := k.client.CoreV1().Nodes().Get(ctx, k.Node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		_, err = k.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		server.Close()
		return nil, fmt.Errorf("write the kubelet's port into Node %s: %w", k.Node, err)
	}
	return server, nil
}

// exec runs a request's command in a container, with the request's streams.
func (k *Kubelet) exec(w http.ResponseWriter, r *http.Request) error {
	file, err := k.execSpec(r)
	if err != nil {
		return err
	}
	defer os.Remove(file) //nolint:errcheck // the folder goes, too
	if _, err := httpstream.Handshake(r, w, []string{protocolV4}); err != nil {
		return err
	}
	opened := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() { <-replied; opened <- s }()
		return nil
	})
	if conn == nil {
		return nil // it has answered
	}
	defer conn.Close() //nolint:errcheck // all has been said
	wanted := 1        // that of the status
	for _, name := range []string{"input", "output", "error"} {
		if r.URL.Query().Get(name) == "1" {
			wanted++
		}
	}
	streams := map[string]httpstream.Stream{}
	for range wanted {
		select {
		case s := <-opened:
			streams[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return nil
		}
	}
	cmd := k.Host.Command(r.Context(), k.Container, file)
	if in, ok := streams[corev1.StreamTypeStdin]; ok {
		cmd.Stdin = in
	}
	if out, ok := streams[corev1.StreamTypeStdout]; ok {
		cmd.Stdout = out
	}
	if errs, ok := streams[corev1.StreamTypeStderr]; ok {
		cmd.Stderr = errs
	}
	_ = json.NewEncoder(streams[corev1.StreamTypeError]).Encode(status(cmd.Run())) // unless who asked has gone
	return nil
}

// status tells how a command ended, as the kubelet does.
func status(err error) metav1.Status {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit):
		code := strconv.Itoa(exit.ExitCode())
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated with non-zero exit code",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: code}}},
		}
	default:
		return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
	}
}

// execSpec writes the file for the command container: a request's command beside the program of a running container.
func (k *Kubelet) execSpec(r *http.Request) (file string, err error) {
	object, err := k.client.CoreV1().Pods(r.PathValue("namespace")).Get(r.Context(), r.PathValue("pod"), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	running := k.Program(object, r.PathValue("container"))
	if running == nil {
		return "", fmt.Errorf("container %s isn't running", r.PathValue("container"))
	}
	dir := filepath.Join(k.Dir, string(object.UID), r.PathValue("container"))
	text, err := os.ReadFile(filepath.Join(dir, "spec.json"))
	if err != nil {
		return "", err
	}
	var s Spec
	if err := json.Unmarshal(text, &s); err != nil {
		return "", err
	}
	s.Join, s.Args = running.Pid(), r.URL.Query()["command"]
	if text, err = json.Marshal(s); err != nil {
		return "", err
	}
	out, err := os.CreateTemp(dir, "exec-*.json")
	if err != nil {
		return "", err
	}
	_, err = out.Write(text)
	return out.Name(), errors.Join(err, out.Close())
}
