package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// directServices is the number of Services of a node, and directEndpoints the number of endpoints of each.
const directServices, directEndpoints = 1000, 10

// directNodes are ingress nodes without and with direct server return. All Services have Maglev, a load-balancer IP and a
// node port, and all endpoints are on other nodes.
var directNodes = []struct {
	name string
	// proxied is false for a node without rules, direct is true with direct server return, and nodePorts also with that
	// of node ports.
	proxied, direct, nodePorts bool
}{
	{name: "plain forwarding"},
	{name: "NAT", proxied: true},
	{name: "direct server return", proxied: true, direct: true},
	{name: "also of node ports", proxied: true, direct: true, nodePorts: true},
}

// directKinds are the packets.
var directKinds = []struct {
	name string
	// bare is true if a node without rules forwards the packet, too.
	bare bool
	// beside is the index of the kind of packets to no Service with which this one is compared.
	beside int
	frame  func(t *timer, s *site) []byte
}{
	{"a packet of an established flow to a Service", false, 2, (*timer).ofServiceFlow},
	{"the first packet of a connection to a Service", false, 3, func(t *timer, s *site) []byte {
		return t.syn(s, t.balancerIP(rand.IntN(t.services)), servicePort)
	}},
	{"a packet of an established flow, no Service", true, 2, (*timer).ofFlow},
	{"the first packet of a connection, no Service", true, 3, (*timer).toEndpoint},
	{"the first packet of a connection to a node port", false, 3, func(t *timer, s *site) []byte {
		return t.syn(s, s.lab.Node.Addrs()[t.family], directNodePort(rand.IntN(t.services)))
	}},
}

// directNodePort is the node port of a Service.
func directNodePort(i int) uint16 { return uint16(30_000 + i) }

// balancerIP is the load-balancer IP of a Service.
func (z size) balancerIP(i int) netip.Addr { return z.addr(97, byte(1+i/250), byte(1+i%250)) }

// directQuantity is the time of a packet at a node.
func directQuantity(kind, node int) quantity {
	return quantity(directKinds[kind].name + ": " + directNodes[node].name)
}

// directObjects returns the objects of a node. The endpoint of the first Service is the lab's client, which stands for
// a pod on another node, and serves UDP.
func directObjects(w *world, direct bool) (list []runtime.Object) {
	for i := range w.services {
		s := w.service(i)
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.TrafficDistribution = nil
		s.Spec.Ports[0].NodePort = int32(directNodePort(i))
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: w.balancerIP(i).String()}}
		s.Annotations["kube-nftproxy.io/lb-algorithm"] = "maglev"
		if direct {
			s.Annotations["kube-nftproxy.io/forwarding-mode"] = "dsr"
		}
		slice := w.slice(i, 0, w.endpoints)
		if i == 0 {
			s.Spec.Ports[0].Protocol, s.Spec.Ports[0].Port = corev1.ProtocolUDP, echoPort
			slice = sliceOf(s, 1, echoPort, []netip.Addr{w.lab.Client.Addrs()[w.family]})
		}
		slice.TypeMeta = metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"}
		list = append(list, s, slice)
	}
	return list
}

// measureDirect measures the time of packets at an ingress node with direct server return, beside NAT and plain
// forwarding. In each turn, the program starts again, because the location of elements in memory matters.
func measureDirect(ctx context.Context, s settings) error {
	turns, packets := 7, 20000
	if s.quick {
		turns = 1
	}
	var text strings.Builder
	r := newReport("")
	fmt.Fprintf(&text, "Linux %s, %d processors, %s; %d Services with %d endpoints each; medians of %d turns,\n"+
		"in brackets the least and the greatest value.\n", r.Kernel, r.CPUs, r.Go, directServices, directEndpoints, turns)
	for _, family := range inet.Families {
		f := &Figures{Values: map[quantity][]float64{}}
		for turn := range turns {
			log.Printf("%s, turn %d of %d", family, 1+turn, turns)
			if err := directTurn(ctx, s, family, packets, f); err != nil {
				return fmt.Errorf("%s: %w", family, err)
			}
		}
		f.direct(family, &text)
	}
	fmt.Print(text.String())
	if s.output == "" {
		return nil
	}
	return page.Write(filepath.Join(s.output, "docs/dsr.md"), "costs", text.String())
}

// directTurn measures all nodes once.
func directTurn(ctx context.Context, s settings, family inet.Family, packets int, f *Figures) (err error) {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &timer{world: &world{size: size{directServices, directEndpoints, family}}}
	defer t.close()
	for n := range directNodes {
		if err := t.addDirectNode(ctx, s, dir, n, f); err != nil {
			return fmt.Errorf("%s: %w", directNodes[n].name, err)
		}
	}
	bursts := &Figures{Values: map[quantity][]float64{}}
	if err := t.time(ctx, packets/perBurst, bursts); err != nil {
		return err
	}
	for _, at := range t.sites {
		err = errors.Join(err, at.allArrived(ctx))
	}
	for _, st := range t.streams {
		v, _ := bursts.median(st.quantity)
		f.add(st.quantity, v)
	}
	return err
}

// addDirectNode adds a node with its program, flows and streams.
func (t *timer) addDirectNode(ctx context.Context, s settings, dir string, n int, f *Figures) error {
	l, err := lab.New(packetLab)
	if err != nil {
		return fmt.Errorf("make network namespaces: %w", err)
	}
	at, node := &site{lab: l, own: true, socket: -1}, directNodes[n]
	t.sites, t.world.lab = append(t.sites, at), l
	if err := at.connect(); err != nil {
		return err
	}
	if node.proxied {
		if err := t.startDirect(ctx, s, dir, n, f); err != nil {
			return err
		}
	}
	for _, h := range at.ends() {
		if _, err := h.Serve(inet.UDP, echoPort); err != nil {
			return err
		}
	}
	if at.flow, err = t.established(ctx, at, l.Pods[0].Addrs()[t.family]); err != nil {
		return err
	}
	switch to := t.balancerIP(0); {
	case node.direct:
		const port = 40000
		from := netip.AddrPortFrom(at.sender().Addrs()[t.family], port)
		at.serviceFlow = at.packet(unix.IPPROTO_UDP, from, netip.AddrPortFrom(to, echoPort), []byte("\x00\x0c\x00\x00hi!\n"))
	case node.proxied:
		at.serviceFlow, err = t.established(ctx, at, to)
	}
	for kind, k := range directKinds {
		if k.bare || node.proxied {
			t.streams = append(t.streams, stream{directQuantity(kind, n), place(n), k.frame})
		}
	}
	return errors.Join(err, at.deafen(ctx))
}

// startDirect starts the program on a node, and records its elements.
func (t *timer) startDirect(ctx context.Context, s settings, dir string, n int, f *Figures) error {
	at, node := t.sites[n], directNodes[n]
	manifests := manifestsOf(dir, n)
	if err := writeList(filepath.Join(manifests, "list.json"), directObjects(t.world, node.direct)); err != nil {
		return err
	}
	// Clients are outside of the cluster, unlike in the other measurements.
	flags := []string{"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"}
	if node.direct {
		flags = append(flags, "--direct-server-return")
	}
	if node.nodePorts {
		addrs := at.lab.Node.Addrs()
		networks := fmt.Sprintf("%s/32,%s/128", addrs[inet.IPv4], addrs[inet.IPv6])
		flags = append(flags, "--direct-server-return-node-cidrs="+networks)
	}
	p, err := t.start(ctx, at.lab.Node, s.ours, manifests, flags...)
	if p != nil {
		at.stop = append(at.stop, p.Kill)
	}
	if err != nil {
		return err
	}
	m, err := p.Metrics(ctx)
	if err != nil {
		return err
	}
	if problems, _ := m.Sum("kubenftproxy_problems_total"); problems != 0 {
		return fmt.Errorf("%v problems, want none", problems)
	}
	count, _ := m.Sum("kubenftproxy_elements")
	f.add(elementsOf(n), count)
	return nil
}

// elementsOf is the number of elements of a node.
func elementsOf(node int) quantity { return elements + ": " + quantity(directNodes[node].name) }

// direct writes the table of a family: the time of a packet, also as a multiple of the time of a packet of the same
// kind to no Service at a node without rules.
func (f *Figures) direct(family inet.Family, b *strings.Builder) {
	head, line := "| "+family.String()+" |", "|---|"
	for _, n := range directNodes {
		head, line = head+" "+n.name+" |", line+"---|"
	}
	b.WriteString("\n" + head + "\n" + line + "\n")
	for kind, k := range directKinds {
		b.WriteString("| " + k.name + " |")
		bare, _ := f.median(directQuantity(k.beside, 0))
		for n := range directNodes {
			q := directQuantity(kind, n)
			if v, ok := f.median(q); ok {
				fmt.Fprintf(b, " %.2f×, %s |", v/bare, f.cell(q))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(b, "| %s | |", elements)
	for n := 1; n < len(directNodes); n++ {
		v, _ := f.median(elementsOf(n))
		fmt.Fprintf(b, " %.0f |", v)
	}
	b.WriteString("\n")
}
