package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// vipServices is the number of Services of a node, and rangedServices the number of those with port ranges. Each of these has a range at two
// addresses, so that the node has as many ranges as it can have.
const (
	vipServices    = 10000
	vipEndpoints   = 2 // with one, a Service without a load-balancer IP has other elements
	rangedServices = 500
)

// vipNode is a node of this measurement.
type vipNode struct {
	name string
	// vips adds a load-balancer IP to each Service, and the flags for these. ranges adds port ranges.
	vips, ranges bool
}

// vipNodes are measured by turns. The second one shows the noise.
var vipNodes = []vipNode{
	{name: "10,000 Services"},
	{name: "the same on another node"},
	{name: "each with a load-balancer IP, `--answer-ping=always`, `--refuse-unused-ports=all`", vips: true},
	{name: "also 1,000 port ranges", vips: true, ranges: true},
}

func (n vipNode) flags() []string {
	if !n.vips {
		return nil
	}
	return []string{"--answer-ping=always", "--refuse-unused-ports=all"}
}

// objects returns the objects of a node.
func (n vipNode) objects(w *world) []runtime.Object {
	list := []runtime.Object{&corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: w.lab.Node.Addrs()[w.family].String()}}},
	}}
	for i := range w.services {
		s, slice := n.service(w, i), w.slice(i, 0, w.endpointsOf(i))
		slice.TypeMeta = metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}
		list = append(list, s, slice)
	}
	return list
}

func (n vipNode) service(w *world, i int) *corev1.Service {
	s := w.service(i)
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	if n.vips {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: w.addr(97, byte(1+i/250), byte(1+i%250)).String()}}
	}
	if n.ranges && i < rangedServices {
		s.Annotations["kube-nftproxy.io/port-ranges"] = "udp/10000-20000"
	}
	return s
}

// The kinds of new connections of this measurement.
var vipKinds = []struct {
	name  string
	frame func(t *timer, s *site) []byte
}{
	{"to an address without a Service", (*timer).toEndpoint},
	{"to a Service without port ranges", func(t *timer, s *site) []byte {
		return t.syn(s, t.vip(rangedServices+rand.IntN(t.services-rangedServices)), servicePort)
	}},
}

// vipQuantity is the time of a new connection at a node, or above that at the first node.
func vipQuantity(family inet.Family, kind, node int) quantity {
	return quantity(fmt.Sprintf("%s, %s: %s", family, vipKinds[kind].name, vipNodes[node].name))
}

// measureVIPs measures new connections at nodes without and with load-balancer IPs and port ranges. The time of a new connection depends on the location
// of the elements in the kernel's memory. So in each turn, the program starts again on all nodes, and writes its rules.
func measureVIPs(ctx context.Context, s settings) error {
	turns, packets := 7, 20000
	if s.quick {
		turns = 1
	}
	f := &Figures{Values: map[quantity][]float64{}}
	for _, family := range inet.Families {
		if err := measureVIPsOf(ctx, s, family, turns, packets, f); err != nil {
			return fmt.Errorf("%s: %w", family, err)
		}
	}
	text := f.vips(turns)
	fmt.Print(text)
	if s.output == "" {
		return nil
	}
	return page.Write(filepath.Join(s.output, "docs/benchmarks-details.md"), "vips", text)
}

func measureVIPsOf(ctx context.Context, s settings, family inet.Family, turns, packets int, f *Figures) (err error) {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &timer{world: vipWorld(family)}
	defer t.close()
	for n, node := range vipNodes {
		if _, err := t.addSite(ctx, nil); err != nil {
			return err
		}
		if err := writeList(filepath.Join(manifestsOf(dir, n), "list.json"), node.objects(t.world)); err != nil {
			return err
		}
		for kind := range vipKinds {
			t.streams = append(t.streams, stream{vipQuantity(family, kind, n), place(n), vipKinds[kind].frame})
		}
	}
	for turn := range turns {
		log.Printf("%s, turn %d of %d", family, 1+turn, turns)
		if err := t.vipTurn(ctx, s, dir, packets, f); err != nil {
			return err
		}
	}
	return nil
}

// vipTurn starts the program on each node, sends packets, and removes the rules.
func (t *timer) vipTurn(ctx context.Context, s settings, dir string, packets int, f *Figures) (err error) {
	for _, n := range rand.Perm(len(vipNodes)) {
		host := t.sites[n].lab.Node
		p, err := t.start(ctx, host, s.ours, manifestsOf(dir, n), vipNodes[n].flags()...)
		if p != nil {
			defer func() {
				p.Kill()
				err = errors.Join(err, host.Command(context.WithoutCancel(ctx), s.ours, "--cleanup").Run())
			}()
		}
		if err != nil {
			return err
		}
		m, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		if problems, _ := m.Sum("kubenftproxy_problems_total"); problems != 0 {
			return fmt.Errorf("%s: %v problems, want none", vipNodes[n].name, problems)
		}
	}
	bursts := &Figures{Values: map[quantity][]float64{}}
	if err := t.time(ctx, packets/perBurst, bursts); err != nil {
		return err
	}
	for _, at := range t.sites {
		if err := at.allArrived(ctx); err != nil {
			return err
		}
	}
	for kind := range vipKinds {
		first := vipQuantity(t.family, kind, 0)
		v, _ := bursts.median(first)
		f.add(first, v)
		for n := 1; n < len(vipNodes); n++ {
			q := vipQuantity(t.family, kind, n)
			v, ok := extra{more: q, less: first}.median(bursts)
			if !ok {
				return fmt.Errorf("%s: not measured", q)
			}
			f.add(q, v)
		}
	}
	return nil
}

// start starts a program on a host with a folder of manifests and further flags, which precede others, and waits for
// its first sync. If the wait fails, it also returns the running program.
func (t *timer) start(ctx context.Context, host *lab.Host, path, manifests string, flags ...string) (*program.Program, error) {
	p, err := program.Start(ctx, program.Config{Host: host, Path: path, Log: manifests + ".log", Rest: time.Second, Args: append([]string{
		"--manifests=" + manifests, "--hostname-override=" + nodeName, "--cluster-cidr=" + clusterCIDRs[t.family],
		"--proxy-mode=nftables", "--conntrack-max-per-core=0"}, flags...)})
	if err != nil {
		return nil, err
	}
	_, err = p.AwaitSync(ctx, time.Time{}, t.family)
	return p, err
}

func manifestsOf(dir string, node int) string {
	return filepath.Join(dir, fmt.Sprintf("manifests-%d", node))
}

// vipWorld returns the Services without an API server.
func vipWorld(family inet.Family) *world {
	return &world{size: size{vipServices, vipEndpoints, family}}
}

// writeList writes a List for --manifests, and its folder.
func writeList(path string, items []runtime.Object) error {
	text, err := json.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Items           []runtime.Object `json:"items"`
	}{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, items})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// vips returns the table in Markdown.
func (f *Figures) vips(turns int) string {
	r := newReport("")
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s, %d processors, %s; medians of %d turns, in brackets the least and the greatest value.\n\n", r.Kernel, r.CPUs, r.Go, turns)
	head, line := "| a new connection |", "|---|"
	for _, family := range inet.Families {
		for _, k := range vipKinds {
			head, line = head+" "+family.String()+" "+k.name+" |", line+"---|"
		}
	}
	b.WriteString(head + "\n" + line + "\n")
	for n, node := range vipNodes {
		name := node.name
		if n > 0 {
			name += ": above the first row"
		}
		b.WriteString("| " + name + " |")
		for _, family := range inet.Families {
			for kind := range vipKinds {
				b.WriteString(" " + f.cell(vipQuantity(family, kind, n)) + " |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
