//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// testTransactions: a watch that ends in the middle of a transaction loses the rest, unless each write has its own transaction.
func testTransactions(t *testing.T, c *Cluster) {
	for name, tc := range map[string]struct {
		store *Store
		rest  int
	}{
		"together": {c.Store(t.Context()), 0},
		"singly":   {c.Store(t.Context()).Singly(), 2},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 3 {
				slice := testSlice()
				slice.Namespace, slice.Name = "default", fmt.Sprintf("%s-%d", name, i)
				tc.store.Slice(slice)
			}
			lab.Must(t, tc.store.Flush())
			stored := mustList(t, c, name)
			// The writes after the first one, and a last one that marks the end.
			w, err := c.Client().DiscoveryV1().EndpointSlices("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: stored[0].ResourceVersion})
			lab.Must(t, err)
			defer w.Stop()
			last := testSlice()
			last.Name = name + "-last"
			lab.Must(t, c.Apply(t.Context(), last))
			rest := 0
			for event := range w.ResultChan() {
				if event.Object.(*discoveryv1.EndpointSlice).Name == last.Name {
					break
				}
				rest++
			}
			lab.Same(t, tc.rest, rest, "after the first of three writes")
		})
	}
}

// mustList returns the EndpointSlices with a name prefix, in the order of their versions.
func mustList(t *testing.T, c *Cluster, prefix string) (found []discoveryv1.EndpointSlice) {
	t.Helper()
	list, err := c.Client().DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	lab.Must(t, err)
	for _, s := range list.Items {
		if len(s.Name) > len(prefix) && s.Name[:len(prefix)] == prefix {
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b discoveryv1.EndpointSlice) int {
		return compareVersions(a.ResourceVersion, b.ResourceVersion)
	})
	if len(found) != 3 {
		t.Fatalf("%d EndpointSlices are there, want 3", len(found))
	}
	return found
}

func compareVersions(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return slices.Compare([]byte(a), []byte(b))
}

// testRestart writes while there is no API server, and compacts etcd: the API server then serves at its old address, and cannot
// continue an earlier watch.
func testRestart(t *testing.T, c *Cluster) {
	before, err := c.Client().DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	lab.Must(t, err)
	address := c.Server()
	c.KillServer()
	lab.Same(t, 1, len(c.Pids()), "processes run without the API server")
	store := c.Store(t.Context())
	for i := range 2 {
		slice := testSlice()
		slice.Namespace, slice.Name = "default", fmt.Sprintf("meanwhile-%d", i)
		store.Slice(slice)
		lab.Must(t, store.Flush())
	}
	lab.Must(t, store.Compact())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lab.Must(t, c.RestartServer(ctx))
	if c.Server() != address || len(c.Pids()) != 2 {
		t.Errorf("it serves at %s and was at %s; processes: %v", c.Server(), address, c.Pids())
	}
	if _, err := c.Client().DiscoveryV1().EndpointSlices("default").Get(t.Context(), "meanwhile-1", metav1.GetOptions{}); err != nil {
		t.Errorf("what was written meanwhile: %v", err)
	}
	seconds := int64(10)
	w, err := c.Client().DiscoveryV1().EndpointSlices("").Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: before.ResourceVersion, TimeoutSeconds: &seconds,
	})
	if err == nil {
		defer w.Stop()
		select {
		case event := <-w.ResultChan():
			err = apierrors.FromObject(event.Object)
		case <-time.After(10 * time.Second):
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before: %v, want it to have expired", err)
	}
}
