package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Addresses of clients outside of the cluster. A load balancer's own are in 172.31.78.0/24 and fd00:78::/64.
const (
	clientIPv4 = "192.168.79.1"
	clientIPv6 = "fd00:79::1"
)

// cleanup is the finalizer of Services with a load balancer.
const cleanup = "service.kubernetes.io/load-balancer-cleanup"

// balancer is a pass-through load balancer as clouds have it: it gives Services addresses, and routes them to nodes.
type balancer struct {
	client  kubernetes.Interface
	netns   string
	nodes   []*node
	health  http.Client
	numbers map[string]int    // of a Service's address, by the Service's UID
	routes  map[string]string // addresses to their next hops
}

// balance runs the load balancer until ctx ends.
func (w *world) balance(ctx context.Context) {
	log, err := os.Create(w.path("control/balancer.log"))
	if err != nil {
		return
	}
	defer log.Close()
	b := balancer{client: w.api.Client(), netns: w.control, nodes: w.nodes, numbers: map[string]int{}, routes: map[string]string{}}
	b.health = http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: w.api.Admin().Dial, DisableKeepAlives: true}}
	// The health of nodes is polled, as load balancers do.
	for ; ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
		if err := b.sync(ctx); err != nil {
			fmt.Fprintf(log, "%s %v\n", time.Now().Format(time.TimeOnly), err)
		}
	}
}

func (b *balancer) sync(ctx context.Context) error {
	services, err := b.client.CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	wanted := map[string]string{}
	for i := range services.Items {
		service := &services.Items[i]
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.DeletionTimestamp != nil {
			err = b.release(ctx, service)
		} else if service.Spec.LoadBalancerClass == nil {
			err = b.serve(ctx, service, wanted)
		}
		if err != nil {
			return fmt.Errorf("%s/%s: %w", service.Namespace, service.Name, err)
		}
	}
	return b.route(ctx, wanted)
}

// release removes the status and the finalizer of a Service that needs no load balancer any more.
func (b *balancer) release(ctx context.Context, service *corev1.Service) (err error) {
	if !slices.Contains(service.Finalizers, cleanup) {
		return nil
	}
	services := b.client.CoreV1().Services(service.Namespace)
	if len(service.Status.LoadBalancer.Ingress) > 0 && service.DeletionTimestamp == nil {
		service.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		if service, err = services.UpdateStatus(ctx, service, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	service.Finalizers = slices.DeleteFunc(service.Finalizers, func(f string) bool { return f == cleanup })
	_, err = services.Update(ctx, service, metav1.UpdateOptions{})
	return err
}

// serve gives a Service its addresses, and says where they lead.
func (b *balancer) serve(ctx context.Context, service *corev1.Service, wanted map[string]string) (err error) {
	services := b.client.CoreV1().Services(service.Namespace)
	if !slices.Contains(service.Finalizers, cleanup) {
		service.Finalizers = append(service.Finalizers, cleanup)
		if service, err = services.Update(ctx, service, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	number := b.numbers[string(service.UID)]
	if number == 0 {
		number = len(b.numbers)%250 + 1
		b.numbers[string(service.UID)] = number
	}
	mode := corev1.LoadBalancerIPModeVIP
	var ingress []corev1.LoadBalancerIngress
	for _, family := range service.Spec.IPFamilies {
		address := fmt.Sprintf("172.31.78.%d", number)
		if family == corev1.IPv6Protocol {
			address = fmt.Sprintf("fd00:78::%x", number)
		}
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: address, IPMode: &mode})
		wanted[address] = strings.Join(b.hops(service, family == corev1.IPv6Protocol), " ")
	}
	if len(service.Status.LoadBalancer.Ingress) != len(ingress) {
		service.Status.LoadBalancer.Ingress = ingress
		_, err = services.UpdateStatus(ctx, service, metav1.UpdateOptions{})
	}
	return err
}

// hops returns the nodes that serve a Service: all, or those that say so at its health check node port.
func (b *balancer) hops(service *corev1.Service, ipv6 bool) (hops []string) {
	for _, n := range b.nodes {
		address := n.ipv4
		if ipv6 {
			address = n.ipv6
		}
		if port := service.Spec.HealthCheckNodePort; port != 0 {
			response, err := b.health.Get("http://" + net.JoinHostPort(address.String(), fmt.Sprint(port)) + "/")
			if err != nil {
				continue
			}
			response.Body.Close() //nolint:errcheck // only the status matters
			if response.StatusCode != http.StatusOK {
				continue
			}
		}
		hops = append(hops, "nexthop via "+address.String())
	}
	// Connections are spread by their ports, but a client with affinity stays with its node.
	if service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && len(hops) > 1 {
		hops = hops[:1]
	}
	return hops
}

// route makes the routes as wanted.
func (b *balancer) route(ctx context.Context, wanted map[string]string) error {
	for address, hops := range wanted {
		if current, ok := b.routes[address]; ok && current == hops {
			continue
		}
		source, target := clientIPv4, hops
		if strings.Contains(address, ":") {
			source = clientIPv6
		}
		if hops == "" {
			target = "dev void"
		}
		if err := ipBatch(ctx, b.netns, fmt.Sprintf("route replace %s src %s %s\n", address, source, target)); err != nil {
			return err
		}
		b.routes[address] = hops
	}
	for address := range b.routes {
		if _, ok := wanted[address]; !ok {
			if err := ipBatch(ctx, b.netns, "route delete "+address+"\n"); err != nil {
				return err
			}
			delete(b.routes, address)
		}
	}
	return nil
}
