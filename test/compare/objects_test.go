package main

import (
	"bytes"
	"compress/gzip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestObjectsHaveTheBytesOfRealOnes: the lists of Services and EndpointSlices, encoded and compressed as by the API server, are not smaller than in a real
// cluster. 10 UUIDs, 10 random ends of names and 10 addresses of pods alone take 0.3 kB.
func TestObjectsHaveTheBytesOfRealOnes(t *testing.T) {
	w := &world{size: size{1000, 10, inet.IPv4}}
	var services corev1.ServiceList
	var slices discoveryv1.EndpointSliceList
	for i := range w.services {
		services.Items = append(services.Items, *w.service(i))
		slices.Items = append(slices.Items, *w.slice(i, 0, w.endpoints))
	}
	sent := 0.0
	for _, list := range []interface{ Marshal() ([]byte, error) }{&services, &slices} {
		b, err := list.Marshal()
		lab.Must(t, err)
		var compressed bytes.Buffer
		z, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
		lab.Must(t, err)
		_, err = z.Write(b)
		lab.Must(t, err)
		lab.Must(t, z.Close())
		t.Logf("%T: %d bytes each, %d compressed", list, len(b)/w.services, compressed.Len()/w.services)
		sent += float64(compressed.Len()) / float64(w.services) / 1000
	}
	if least := 0.7; sent < least {
		t.Errorf("%.2f kB for each Service with 10 endpoints, want at least %v", sent, least)
	}
}

// TestChangedObjectsAreTheSame: an EndpointSlice with a replaced endpoint has the name and the UID of its former version, and all other endpoints.
func TestChangedObjectsAreTheSame(t *testing.T) {
	w := &world{size: size{10, 10, inet.IPv4}}
	before, after := w.slice(3, 0, 10), w.slice(3, 1, 10)
	if before.Name != after.Name || before.UID != after.UID {
		t.Errorf("%s %s has become %s %s", before.Name, before.UID, after.Name, after.UID)
	}
	lab.Same(t, before.Endpoints[1:], after.Endpoints[1:], "endpoints that were not replaced")
	if before.Endpoints[0].TargetRef.UID == after.Endpoints[0].TargetRef.UID {
		t.Error("the replaced endpoint has the same pod")
	}
}
