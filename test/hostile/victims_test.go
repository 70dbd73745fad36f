package hostile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The times of creation of Services: those that are on the node before an attack, those of the attack, and those that
// are created during the attack.
var (
	earlier   = metav1.Unix(1_700_000_000, 0)
	meanwhile = metav1.Unix(1_720_000_000, 0)
	later     = metav1.Unix(1_740_000_000, 0)
)

// The ports of pod-0 and pod-1 for victims: one inside of victimRange, and one that keeps connections open.
const (
	rangedPort  = 20_005
	victimRange = "tcp/20000-20010"
	echoPort    = 9090
)

// kind is a kind of Services with a property that no other tenant may take away.
type kind struct {
	name string
	// change adds the property to a Service with port 80.
	change func(s *corev1.Service, v *victim)
	// pods is the number of pods that are endpoints, port their port.
	pods int
	port int32
	// check returns an error unless packets show the property.
	check func(n *node, v *victim) error
}

// victim is a Service of a tenant that others attack.
type victim struct {
	kind
	// service is NAMESPACE/NAME.
	service string
	// number is the last byte of its addresses.
	number int
	// moved is true if its only endpoint is pod-1 instead of pod-0.
	moved bool
	// endpoint is the endpoint of the client with session affinity; empty for none.
	endpoint string
}

func (v *victim) String() string { return fmt.Sprintf("%s (%s)", v.service, v.name) }

// pod returns the name of its only endpoint.
func (v *victim) pod() string {
	if v.moved {
		return "pod-1"
	}
	return "pod-0"
}

func (v *victim) clusterIP() string      { return fmt.Sprintf("10.96.1.%d", v.number) }
func (v *victim) loadBalancerIP() string { return fmt.Sprintf("203.0.113.%d", v.number) }

var (
	plain = kind{name: "a plain cluster IP", change: func(*corev1.Service, *victim) {
	}, pods: 1, port: backendPort, check: func(n *node, v *victim) error {
		return n.answered(v.clusterIP()+":80", v.pod())
	}}
	sourced = kind{name: "a source range", change: func(s *corev1.Service, v *victim) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.LoadBalancerSourceRanges = []string{lab.AddressOf("client", inet.IPv4).String() + "/32"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: v.loadBalancerIP()}}
	}, pods: 1, port: backendPort, check: func(n *node, v *victim) error {
		to := v.loadBalancerIP() + ":80"
		if got := n.ask(n.Clients[1], to, soon/2); got != "timed out" {
			n.Errorf("%s: a source outside of the range: %s, want it timed out", v, got)
		}
		return errors.Join(n.answered(to, v.pod()), n.answered(v.clusterIP()+":80", v.pod()))
	}}
	affine = kind{name: "session affinity", change: func(s *corev1.Service, _ *victim) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}, pods: 2, port: backendPort, check: func(n *node, v *victim) error {
		const connections = 24
		with, wait := map[string]int{}, soon
		for range connections {
			got := n.ask(n.Client, v.clusterIP()+":80", wait)
			with[got]++
			if got != "pod-0" && got != "pod-1" {
				break
			}
			wait = surely
		}
		for _, h := range n.Pods[:2] {
			if with[h.Name] == connections && (v.endpoint == "" || v.endpoint == h.Name) {
				v.endpoint = h.Name
				return nil
			}
		}
		return fmt.Errorf("%d connections have %v, want all at one pod (before: %q)", connections, with, v.endpoint)
	}}
	ranged = kind{name: "port ranges", change: func(s *corev1.Service, _ *victim) {
		s.Annotations = map[string]string{"kube-nftproxy.io/port-ranges": victimRange}
	}, pods: 1, port: backendPort, check: func(n *node, v *victim) error {
		inRange := fmt.Sprintf("%s:%d", v.clusterIP(), rangedPort)
		return errors.Join(n.answered(v.clusterIP()+":80", v.pod()), n.answered(inRange, v.pod()))
	}}
	limited = kind{name: "a maximum of one connection", change: func(s *corev1.Service, _ *victim) {
		s.Annotations = map[string]string{"kube-nftproxy.io/max-connections": "1"}
	}, pods: 1, port: echoPort, check: func(n *node, v *victim) error {
		to := v.clusterIP() + ":80"
		ctx, cancel := context.WithTimeout(n.Context(), soon)
		defer cancel()
		conn, err := n.Client.Dial(ctx, inet.TCP, netip.MustParseAddrPort(to))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // the connection is only held
		if err := conn.SetReadDeadline(time.Now().Add(soon)); err != nil {
			return err
		}
		if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
			return err
		}
		if got := n.ask(n.Client, to, soon); got == v.pod() {
			return fmt.Errorf("%s: a second connection is answered, want none", to)
		}
		return nil
	}}
	kinds = []kind{plain, sourced, affine, ranged, limited}
)

// objects returns the objects of the victim, created at a time.
func (v *victim) objects(n *node, created metav1.Time) []runtime.Object {
	s := service(v.service, v.clusterIP())
	s.CreationTimestamp, s.Spec.Ports = created, ports(80, 1)
	v.change(s, v)
	var pods []netip.Addr
	for _, h := range n.Pods[:2] {
		if v.pods == 2 || h.Name == v.pod() {
			pods = append(pods, h.IPv4)
		}
	}
	return []runtime.Object{s, slice(v.service, 0, portNames(s.Spec.Ports), v.port, pods...)}
}

// newVictims returns a node, and the victims that are on it before an attack. late returns the victims that are created
// during the attack.
func newVictims(t *testing.T, flags ...string) (n *node, early, late []*victim) {
	t.Helper()
	n = newNode(t, 2, flags...)
	n.serveVictims()
	victims := func(first int, names ...string) (list []*victim) {
		for i, name := range names { // the last five have the five kinds
			list = append(list, &victim{kind: kinds[max(0, i-len(names)+len(kinds))], service: name, number: first + i})
		}
		return list
	}
	early = victims(1,
		"kube-system/dns", "default/other", "zbank/zearly", "shop/sticky", "media/ranges", "office/limited")
	late = victims(101, "bank/later", "bank/znew", "bank/zsticky", "bank/zranges", "bank/zlimited")
	n.create("early", earlier, early)
	n.served("before the attack", early)
	return n, early, late
}

// create writes the objects of victims.
func (n *node) create(file string, created metav1.Time, victims []*victim) {
	n.Helper()
	var objects []runtime.Object
	for _, v := range victims {
		objects = append(objects, v.objects(n, created)...)
	}
	n.put(file, objects...)
}

// serveVictims starts the servers on pod-0 and pod-1 that the kinds need in addition.
func (n *node) serveVictims() {
	n.Helper()
	for _, h := range n.Pods[:2] {
		_, err := h.Serve(inet.TCP, rangedPort)
		_, echo := h.ServeEcho(echoPort)
		lab.Must(n.T, errors.Join(err, echo))
	}
}

// served checks the properties of victims, each until it holds, for the time of [patience] together. The test fails for
// each victim without its property, and continues.
func (n *node) served(when string, victims []*victim) {
	n.Helper()
	begin, lost := time.Now(), 0
	for _, v := range victims {
		for {
			err := v.check(n, v)
			if err == nil {
				break
			}
			if time.Since(begin) > patience {
				n.Errorf("%s, %v: %v", when, v, err)
				lost++
				break
			}
			time.Sleep(20 * time.Millisecond) // packets do not announce a sync
		}
	}
	took := time.Since(begin).Round(time.Millisecond)
	n.Logf("%s: %d of %d victims are served, after %v", when, len(victims)-lost, len(victims), took)
}

// absorbed calls a function that writes Services that did not exist before, and waits until the program has planned all
// of them.
func (n *node) absorbed(write func(), services int) {
	n.Helper()
	before, _ := n.changes()
	write()
	took := n.until(2*lab.Patience, "the Services", func() error {
		if total, pending := n.changes(); total < before+float64(services) || pending > 0 {
			return fmt.Errorf("%.0f of %d Services, %.0f pending", total-before, services, pending)
		}
		return nil
	})
	n.Logf("%d Services are absorbed after %v", services, took.Round(time.Millisecond))
}

// restart kills the program and starts it again, so that it finds its tables.
func (n *node) restart() {
	n.Helper()
	n.Kill()
	n.restarted("a restart")
}

// reboot kills the program, deletes all tables, and starts it again.
func (n *node) reboot() {
	n.Helper()
	n.Kill()
	n.nft("flush", "ruleset")
	n.restarted("a reboot")
}

func (n *node) restarted(what string) {
	n.Helper()
	begin := time.Now()
	n.start()
	took := time.Since(begin).Round(time.Millisecond)
	n.Logf("%s: the first sync ends after %v, %d elements, %.0f MiB", what, took, n.elements(), n.memory("VmHWM"))
}

// joined starts the program on a new node with the same objects, and calls a function with this node. Its hosts have
// the same names and addresses. The test ends if this fails.
func (n *node) joined(check func(*node)) {
	n.Helper()
	if !n.Run("new node", func(t *testing.T) {
		j := newLab(t, len(n.Clients), n.folder)
		j.flags, j.serving = n.flags, n.serving
		j.serveVictims()
		j.restarted("a new node")
		check(j)
	}) {
		n.FailNow()
	}
}

// move moves the victims with one endpoint to their other pod, and writes them.
func (n *node) move(file string, created metav1.Time, victims []*victim) {
	n.Helper()
	for _, v := range victims {
		v.moved = !v.moved
	}
	n.create(file, created, victims)
}

// forget forgets the endpoints of clients with session affinity, as a reboot does.
func forget(victims []*victim) {
	for _, v := range victims {
		v.endpoint = ""
	}
}

// socket returns the flags for a control socket in a folder of the test.
func socket(t *testing.T) []string {
	return []string{"--control-socket", filepath.Join(t.TempDir(), "socket")}
}
