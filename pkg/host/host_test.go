package host

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestCheckRelease(t *testing.T) {
	for release, ok := range map[string]bool{
		"5.12.19": false, "4.19.0-27-amd64": false, "5.13.0": true, "6.1.0-56-cloud-amd64": true, "6.18.44-x": true,
		"10.0": true, "garbage": false,
	} {
		if err := checkRelease(release); (err == nil) != ok {
			t.Errorf("checkRelease(%q) = %v", release, err)
		}
	}
}

func TestCheckKernelCanBeSkipped(t *testing.T) {
	t.Setenv(SkipKernelCheck, "1")
	if err := CheckKernel(); err != nil {
		t.Error(err)
	}
}

func TestAddressesAreListedAndFollowed(t *testing.T) {
	lab.EnterNamespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}, 16), make(chan error, 1)
	updates := make(chan netlink.AddrUpdate, 16)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		t.Fatal(err)
	}
	go func() { done <- follow(ctx, updates, func() { changed <- struct{}{} }) }()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	want := netip.MustParseAddr("192.0.2.9")
	addr, _ := netlink.ParseAddr("192.0.2.9/32")
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	<-changed
	got, err := Addresses()
	if err != nil || !slices.Contains(got, want) {
		t.Errorf("Addresses() = %v, %v; want %v among them", got, err, want)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("following ended with %v", err)
	}
}
