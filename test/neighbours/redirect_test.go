//go:build neighbours

package neighbours

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// TestLocalRedirect upgrades and crashes a DNS cache on a node under a load of queries, and counts the lost ones. The
// cache serves the cluster IPs of the cluster's DNS by a local redirect, and runs in a pod or in the node's network.
func TestLocalRedirect(t *testing.T) {
	path := program.BuildForTest(t)
	for _, place := range []string{"pod", "host network"} {
		t.Run(place, func(t *testing.T) { redirected(t, path, place == "pod") })
	}
}

// nodeCache is a node with a cache of DNS.
type nodeCache struct {
	*lab.Lab
	t            *testing.T
	dir, coredns string
	host         *lab.Host
	running      *program.Program
}

func redirected(t *testing.T, path string, inPod bool) {
	n := &nodeCache{
		Lab: lab.ForTest(t, lab.Config{Pods: 3, Remotes: 1}), t: t, dir: t.TempDir(),
		coredns: filepath.Join(bin(t), "programs", "coredns"),
	}
	if n.host = n.Node; inPod {
		n.host = n.Pods[0]
	}
	lab.Must(t, os.Mkdir(n.manifests(), 0o700))
	var zone strings.Builder
	for i := range names {
		fmt.Fprintf(&zone, "%s n%d.cluster.local\n", answers, i)
	}
	hosts := fmt.Appendf(nil, "%s id.server\n%s", fromCluster, &zone)
	lab.Must(t, os.WriteFile(filepath.Join(n.dir, "zone"), hosts, 0o600))
	n.start(n.Remotes[0], fmt.Sprintf("hosts %s/zone", n.dir))
	n.startCache()
	cluster := world.Endpoints(n.Remotes[0].Addrs(), world.OtherNode)
	for name, ips := range map[string][]netip.Addr{
		"kube-dns": dnsIPs, "kube-dns-upstream": upstreamIPs,
		"node-local-dns": {netip.MustParseAddr("10.96.0.12"), netip.MustParseAddr("fd00:10:96::c")},
	} {
		s := world.ServiceAt(name, ips[0].String(), ips[1].String())
		s.Spec.Type = corev1.ServiceTypeClusterIP
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].Port = 53
		}
		objects := world.Slices(name, 53, cluster)
		switch name {
		case "kube-dns":
			s.Annotations = map[string]string{model.RedirectAnnotation: "node-local-dns"}
		case "node-local-dns":
			objects = nil
		}
		lab.Must(t, world.Write(n.manifests(), name, append(objects, s)...))
	}
	n.publish(true, true, false)
	lab.Must(t, world.Write(n.manifests(), "cluster", world.Node(), world.ServiceCIDR()))
	program.ForTest(t, program.Config{Host: n.Node, Path: path, Args: []string{
		"--manifests=" + n.manifests(), "--hostname-override=" + world.NodeName, "--proxy-mode=nftables",
		"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
		// Other values would set sysctls of the whole machine.
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	}}).Synced(t)
	n.served(fromCache)
	old := n.flows()

	l := newLoad(n)
	defer l.end()
	l.lost("with the cache", 0)

	n.publish(false, true, true)
	n.served(fromCluster)
	l.lost("the endpoint terminates", 0)
	n.stopCache(syscall.SIGTERM)
	l.lost("upgrade", 0)
	n.startCache()
	n.publish(true, true, false)
	n.served(fromCache)
	l.lost("return after the upgrade", 0)

	n.stopCache(syscall.SIGKILL)
	n.eventually("lost queries", func() error {
		if l.failed.Load() < 100 {
			return errors.New("fewer than 100")
		}
		return nil
	})
	known, before := time.Now(), l.failed.Load()
	n.publish(false, false, false)
	n.served(fromCluster)
	l.round()
	t.Logf("crash: %d queries lost before the EndpointSlice changed, %d afterwards, the last one sent %v later",
		before, l.failed.Load()-before, time.Unix(0, l.last.Load()).Sub(known).Round(100*time.Microsecond))
	l.failed.Store(0)
	l.lost("after the crash", 0)
	for _, conn := range old {
		n.eventually("an answer of the cluster's DNS for a client that keeps its port", func() error {
			return asked(conn, "id.server", fromCluster)
		})
	}
	n.startCache()
	n.publish(true, true, false)
	n.served(fromCache)
	l.lost("return after the crash", 0)
}

func (n *nodeCache) manifests() string { return filepath.Join(n.dir, "manifests") }

// start starts a server of DNS on a host, and waits until it answers.
func (n *nodeCache) start(h *lab.Host, plugins ...string) *program.Program {
	n.t.Helper()
	file := filepath.Join(n.dir, h.Name)
	bind := "bind " + h.IPv4.String() + " " + h.IPv6.String()
	text := lines(slices.Concat([]string{".:53 {", "errors", bind}, plugins, []string{"}"})...)
	lab.Must(n.t, os.WriteFile(file, []byte(text), 0o600))
	p := program.ForTest(n.t, program.Config{Host: h, Path: n.coredns, Args: []string{"-conf", file}})
	for _, addr := range h.Addrs() {
		n.eventually("the start of "+h.Name, func() error {
			if p.Exited() {
				return errors.New(p.LogTail(5))
			}
			return once(n.t.Context(), n.Pods[2], netip.AddrPortFrom(addr, 53), "n1.cluster.local", answers)
		})
	}
	return p
}

// startCache starts the cache. It knows the name of the first query itself, because the proxy may not run yet.
func (n *nodeCache) startCache() {
	n.t.Helper()
	n.running = n.start(n.host, "hosts {", fromCache+" id.server", answers+" n1.cluster.local", "fallthrough", "}",
		"cache 30", fmt.Sprintf("forward . %s %s", upstreamIPs[0], upstreamIPs[1]))
}

func (n *nodeCache) stopCache(s syscall.Signal) {
	n.t.Helper()
	lab.Must(n.t, n.running.Signal(s))
	_ = n.running.Wait() // the signal is its error
}

// publish writes the EndpointSlices of the cache, as the kubelet and the controller of EndpointSlices do.
func (n *nodeCache) publish(ready, serving, terminating bool) {
	n.t.Helper()
	pair := world.Endpoints(n.host.Addrs(), world.NodeName)
	for i := range pair {
		pair[i].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	lab.Must(n.t, world.Write(n.manifests(), "slices", world.Slices("node-local-dns", 53, pair)...))
}

// served waits until a server answers at each address, from a pod and from the node.
func (n *nodeCache) served(by string) {
	n.t.Helper()
	for _, from := range []*lab.Host{n.Pods[2], n.Node} {
		for _, ip := range dnsIPs {
			n.eventually("an answer of "+by, func() error {
				return once(n.t.Context(), from, netip.AddrPortFrom(ip, 53), "id.server", by)
			})
		}
	}
}

func (n *nodeCache) eventually(what string, f func() error) {
	n.t.Helper()
	m := machine{t: n.t}
	m.eventually(what, f)
}

// flows returns clients that keep their ports.
func (n *nodeCache) flows() (list []net.Conn) {
	n.t.Helper()
	for _, ip := range dnsIPs {
		conn, err := n.Pods[2].Dial(n.t.Context(), inet.UDP, netip.AddrPortFrom(ip, 53))
		lab.Must(n.t, err)
		n.t.Cleanup(func() { _ = conn.Close() })
		lab.Must(n.t, asked(conn, "id.server", fromCache))
		list = append(list, conn)
	}
	return list
}

// once sends one query from a new port, without a retry.
func once(ctx context.Context, from *lab.Host, to netip.AddrPort, name, want string) error {
	conn, err := from.Dial(ctx, inet.UDP, to)
	if err != nil {
		return err
	}
	return errors.Join(asked(conn, name, want), conn.Close())
}

// asked sends a query for an IPv4 address, and returns an error without the wanted answer.
func asked(conn net.Conn, name, want string) error {
	id := uint16(nextName.Add(1))
	query := binary.BigEndian.AppendUint16(nil, id)
	query = append(query, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired, one question
	for label := range strings.SplitSeq(name, ".") {
		query = append(append(query, byte(len(label))), label...)
	}
	query = append(query, 0, 0, 1, 0, 1) // type A, class IN
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(query); err != nil {
		return err
	}
	address := netip.MustParseAddr(want).As4()
	for reply := make([]byte, 1500); ; {
		k, err := conn.Read(reply)
		switch {
		case err != nil:
			return err
		case k < 12 || !bytes.Equal(reply[:2], query[:2]):
			continue // of an earlier query
		case !bytes.Contains(reply[12:k], slices.Concat([]byte{0, 4}, address[:])): // length and data of a record
			return fmt.Errorf("%s: the reply has not the address %s", name, want)
		}
		return nil
	}
}

// load are clients in a pod, with some hundred queries a second in all, each from a new port: half of them for a name
// that the cache does not have.
type load struct {
	n            *nodeCache
	made, failed atomic.Int64
	last         atomic.Int64 // the time at which the last lost query was sent
	rounds       [clients]atomic.Int64
	stop         chan struct{}
	all          sync.WaitGroup
}

const clients = 8

func newLoad(n *nodeCache) *load {
	l := &load{n: n, stop: make(chan struct{})}
	for i := range clients {
		l.all.Go(func() { l.run(i) })
	}
	return l
}

func (l *load) run(i int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for k := i; ; k++ {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		name := fmt.Sprintf("n%d.cluster.local", 2+nextName.Add(1)%(names-2))
		if k%4 < 2 {
			name = "n1.cluster.local"
		}
		l.made.Add(1)
		sent := time.Now().UnixNano()
		to := netip.AddrPortFrom(dnsIPs[k%2], 53)
		if err := once(context.Background(), l.n.Pods[2], to, name, answers); err != nil {
			l.failed.Add(1)
			for last := l.last.Load(); sent > last && !l.last.CompareAndSwap(last, sent); last = l.last.Load() {
			}
		}
		l.rounds[i].Add(1)
	}
}

// round waits until the queries that were sent before have ended, and some later ones.
func (l *load) round() {
	l.n.t.Helper()
	for i := range l.rounds {
		until := l.rounds[i].Load() + 20
		l.n.eventually("queries", func() error {
			if l.rounds[i].Load() < until {
				return errors.New("too few")
			}
			return nil
		})
	}
}

// lost fails if another number of queries was lost since the last call.
func (l *load) lost(when string, want int64) {
	l.n.t.Helper()
	l.round()
	made, failed := l.made.Swap(0), l.failed.Swap(0)
	if l.n.t.Logf("%s: %d of %d queries lost", when, failed, made); failed != want {
		l.n.t.Errorf("%s: %d of %d queries lost, want %d", when, failed, made, want)
	}
}

func (l *load) end() {
	close(l.stop)
	l.all.Wait()
}
