package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// manyServices is the number of Services that the step adds, each with one port and two endpoints.
const manyServices = 10_000

// many serves 10,000 more Services, changes one, kills the daemon and starts it again.
func (d *demo) many(ctx context.Context) error {
	if err := d.daemon.stop(); err != nil {
		return err
	}
	before := d.source
	f, err := newFolder(d.scratch, "MANY", d.out)
	if err != nil {
		return err
	}
	d.source = f
	defer func() { d.source = before }()
	names, err := initial()
	if err != nil {
		return err
	}
	if _, err := f.apply(ctx, names...); err != nil {
		return err
	}
	if err := world.Write(f.dir, "more", more()...); err != nil {
		return err
	}
	d.out.note("The folder $MANY also has 10,000 other Services, each with two endpoints:")
	d.out.command("kube-nftproxy --manifests $MANY …")
	if err := d.start(); err != nil {
		return err
	}
	began := time.Now()
	if err := d.daemon.await(ctx, "the first rules", d.ready); err != nil {
		return err
	}
	m, err := d.daemon.metrics(ctx)
	if err != nil {
		return err
	}
	mib, err := d.daemon.Memory("VmRSS")
	if err != nil {
		return err
	}
	d.out.ok(fmt.Sprintf("All are served %s after the start: %s, committed in %s. Memory: %.0f MiB.", millis(time.Since(began)),
		plural(m.elements(), "element"), millis(m.kernel()), mib))
	if err := d.changed(ctx); err != nil {
		return err
	}
	if err := d.restart(ctx); err != nil {
		return err
	}
	d.out.note("Most of the start is the reading of the folder.")
	return nil
}

// changed removes an endpoint of web and states how long the kernel took for it among all the others.
func (d *demo) changed(ctx context.Context) error {
	before, err := d.daemon.metrics(ctx)
	if err != nil {
		return err
	}
	d.out.note("An endpoint of web is removed:")
	if _, err := d.source.apply(ctx, withoutPod1); err != nil {
		return err
	}
	var after numbers
	err = d.daemon.await(ctx, "the change", func(ctx context.Context) (err error) {
		if after, err = d.daemon.metrics(ctx); err == nil && after.elements() == before.elements() {
			err = fmt.Errorf("no change yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	d.out.ok(fmt.Sprintf("%s, committed in %s: the cost does not depend on the number of Services.", plural(after.elements()-before.elements(), "element"),
		millis(after.kernel()-before.kernel())))
	return nil
}

// more are the objects of many Services.
func more() (objects []runtime.Object) {
	var endpoints []discoveryv1.Endpoint
	for _, ip := range []string{"10.244.0.10", "10.244.1.10"} {
		endpoints = append(endpoints, world.Endpoint(netip.MustParseAddr(ip), world.NodeName))
	}
	for i := range manyServices {
		name := fmt.Sprintf("more-%d", i)
		s := world.Service(name, corev1.IPv4Protocol)
		s.Spec.ClusterIP = fmt.Sprintf("10.97.%d.%d", i/250, i%250+1)
		s.Spec.ClusterIPs, s.Spec.Ports = []string{s.Spec.ClusterIP}, s.Spec.Ports[:1]
		slice := world.Slice(name, name, webPort, endpoints...)
		slice.Ports = slice.Ports[:1]
		objects = append(objects, s, slice)
	}
	return objects
}
