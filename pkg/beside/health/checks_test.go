package health

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The ports change only when the loop calls Serve. Failed ports are retried, and counted.
func TestChecksFollowTheLoop(t *testing.T) {
	s := newServices(func(model.Problem) {})
	open, refused := map[string]bool{}, true
	s.listen = func(network, address string) (net.Listener, error) {
		if refused {
			return nil, errors.New("address in use")
		}
		l, err := net.Listen(network, "127.0.0.1:0")
		open[address] = true
		return l, err
	}
	var failed []int
	c := NewChecks(s, inet.Families[:1], func(n int) { failed = append(failed, n) })
	defer c.Close()
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	frontends := []model.Frontend{{Key: model.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}}
	c.Service(name, &model.Service{
		Name: name, HealthCheckNodePort: 32000, LocalReady: [2]int{2, 0},
		Ports: []*model.ServicePort{{Family: inet.IPv4, Frontends: frontends}, {Family: inet.IPv6, Frontends: frontends}},
	})
	n := &beside.Node{}
	n.Sockets = [2][]netip.Addr{{netip.MustParseAddr("192.0.2.1")}, {netip.MustParseAddr("2001:db8::1")}}
	c.Node(n)
	if len(s.checks) > 0 {
		t.Error("the checks have changed before Serve")
	}
	c.Serve(true)
	c.Serve(true)
	refused = false
	c.Serve(true)
	c.Serve(true) // without a change
	lab.Same(t, []int{1, 1, 0}, failed, "failed ports")
	lab.Same(t, map[string]bool{"192.0.2.1:32000": true}, open, "open ports")
	c.Serve(false)
	if len(s.servers) > 0 {
		t.Error("a port is open while another instance serves")
	}
	c.Serve(true)
	if len(s.servers) != 1 || s.checks[name].Local != [2]int{2, 0} {
		t.Errorf("%d open ports, checks %v, want one of web after its return", len(s.servers), s.checks)
	}
	c.Service(name, nil)
	c.Serve(true)
	if len(s.servers) > 0 {
		t.Error("the port of a deleted Service is open")
	}
}
