package soak

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// ForTest serves an API with the Node and a ServiceCIDR at an address of a host until the end of the test. It returns the API and the path
// of a kubeconfig.
func ForTest(t testing.TB, h *lab.Host) (a *API, kubeconfig string) {
	t.Helper()
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", netip.AddrPortFrom(h.IPv4, 0).String())
		return err
	})
	lab.Must(t, err)
	a, kubeconfig = Serve(l), filepath.Join(t.TempDir(), "kubeconfig")
	t.Cleanup(a.Close)
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: \"http://" + l.Addr().String() + "\"}}]\n" +
		"contexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
	err = errors.Join(
		os.WriteFile(kubeconfig, []byte(text), 0o600),
		a.Put("nodes", world.Node()),
		a.Put("servicecidrs", &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}},
		}),
	)
	lab.Must(t, err)
	return a, kubeconfig
}
