package kubelet

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// forwardProtocol is that of kubectl port-forward: for each connection a stream of errors and one of data (k8s.io/kubelet,
// pkg/cri/streaming/portforward).
const forwardProtocol = "portforward.k8s.io"

// logs answers kubectl logs. A container's file has what all its programs have said, so previous ones need no other.
func (k *Kubelet) logs(w http.ResponseWriter, r *http.Request) error {
	object, err := k.client.CoreV1().Pods(r.PathValue("namespace")).Get(r.Context(), r.PathValue("pod"), metav1.GetOptions{})
	if err != nil {
		return err
	}
	http.ServeFile(w, r, filepath.Join(k.Dir, string(object.UID), r.PathValue("container"), "log"))
	return nil
}

// forward answers kubectl port-forward: connections go to loopback in the pod, which has the node's network.
func (k *Kubelet) forward(w http.ResponseWriter, r *http.Request) error {
	if _, err := httpstream.Handshake(r, w, []string{forwardProtocol}); err != nil {
		return err
	}
	opened := make(chan httpstream.Stream)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			select {
			case opened <- s:
			case <-r.Context().Done():
			}
		}()
		return nil
	})
	if conn == nil {
		return nil // it has answered
	}
	defer conn.Close() //nolint:errcheck // all has been said
	halves := map[string]httpstream.Stream{}
	for {
		select {
		case s := <-opened:
			id := s.Headers().Get(corev1.PortForwardRequestIDHeader)
			other, both := halves[id]
			switch {
			case !both:
				halves[id] = s
			case s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData:
				go k.connect(r, s, other)
			default:
				go k.connect(r, other, s)
			}
		case <-conn.CloseChan():
			return nil
		}
	}
}

// connect copies between a stream and a port of the node until either ends.
func (k *Kubelet) connect(r *http.Request, data, failed httpstream.Stream) {
	err := func() error {
		defer data.Close() //nolint:errcheck // the other side has gone by then
		port, err := strconv.ParseUint(data.Headers().Get(corev1.PortHeader), 10, 16)
		if err != nil {
			return err
		}
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
		conn, err := k.Host.Dial(r.Context(), inet.TCP, to)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // all has been copied
		ends := make(chan error, 2)
		go func() { _, err := io.Copy(conn, data); ends <- err }()
		go func() { _, err := io.Copy(data, conn); ends <- err }()
		return <-ends
	}()
	if err != nil && !errors.Is(err, io.EOF) {
		_, _ = fmt.Fprint(failed, err)
	}
	_ = failed.Close()
}
