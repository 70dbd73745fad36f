package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeUsers records node ports and addresses.
type fakeUsers struct {
	mu    sync.Mutex
	ports map[types.NamespacedName][]model.Key
	addrs [2][]netip.Addr
}

func (u *fakeUsers) Service(name types.NamespacedName, ports []model.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ports[name] = ports
	if len(ports) == 0 {
		delete(u.ports, name)
	}
}

func (u *fakeUsers) Addresses(f inet.Family, addrs []netip.Addr) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.addrs[f] = addrs
}

// received waits for a sync, and lists the recorded node ports.
func (u *fakeUsers) received() (list []string) {
	time.Sleep(5 * time.Second)
	synctest.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, ports := range u.ports {
		for _, k := range ports {
			list = append(list, fmt.Sprintf("%s %s %d %s", name, k.Protocol, k.Port, k.Family))
		}
	}
	slices.Sort(list)
	return list
}

// The loop passes each change of a Service's node ports, and of the addresses that serve them, to NodePortUsers.
func TestNodePortUsersReceiveChanges(t *testing.T) {
	run(t, func(b *bench) {
		users := &fakeUsers{ports: map[types.NamespacedName][]model.Key{}}
		b.NodePortUsers = users
		b.NodePorts.Local = func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, nil
		}
		nodePort := func(number int32) func(*corev1.Service) {
			return func(s *corev1.Service) {
				s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, number
				s.Spec.ExternalIPs = []string{"203.0.113.1"}
			}
		}
		b.set(1, 2)
		b.set(2, 2, nodePort(30080))
		// Without endpoints, the rules reject packets before they reach a process.
		b.set(3, 0, nodePort(30081))
		close(b.source.synced)
		expect := func(want ...string) {
			t.Helper()
			lab.Same(t, want, users.received(), "node ports")
		}
		expect("default/svc-2 tcp 30080 IPv4", "default/svc-3 tcp 30081 IPv4")
		want := [2][]netip.Addr{{netip.MustParseAddr("192.0.2.1")}, {netip.MustParseAddr("2001:db8::1")}}
		if diff := cmp.Diff(want, users.addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		b.set(2, 2, nodePort(30090))
		expect("default/svc-2 tcp 30090 IPv4", "default/svc-3 tcp 30081 IPv4")
		b.set(2, 2)
		expect("default/svc-3 tcp 30081 IPv4")
		name := types.NamespacedName{Namespace: "default", Name: "svc-3"}
		b.source.mu.Lock()
		delete(b.source.services, name)
		b.source.mu.Unlock()
		b.Tracker.MarkService(name)
		expect()
	})
	ofIPv4 := &model.Service{Ports: []*model.ServicePort{{Family: inet.IPv4, Frontends: []model.Frontend{{Kind: model.NodePort, Key: model.Key{Port: 30080, Protocol: inet.TCP}}}}}}
	if keys := (portUsers{families: []inet.Family{inet.IPv6}}).portsOf(ofIPv4); len(keys) > 0 {
		t.Errorf("node ports of a family that is not served: %v", keys)
	}
}
