package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// heard is a listener that records the announcements.
type heard struct {
	mu   sync.Mutex
	list []string
}

func (h *heard) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, fmt.Sprintf(format, args...))
}

func (h *heard) take() (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list, h.list = h.list, nil
	return list
}

func (h *heard) Service(name types.NamespacedName, s *model.Service) {
	h.add("%s %t", name.Name, s != nil)
}
func (h *heard) Node(*beside.Node)     { h.add("node") }
func (h *heard) Synced(s *beside.Sync) { h.add("synced first=%t err=%v", s.First, s.Err) }
func (h *heard) Serve(on bool)         { h.add("serve %t", on) }

// Each listener gets the announcements in the order of the loop: Services before their commit, the outcome after it,
// and the start of service only after a success.
func TestOrderOfAnnouncements(t *testing.T) {
	run(t, func(b *bench) {
		h := &heard{}
		b.Listeners = []beside.Listener{{Service: h.Service, Node: h.Node, Synced: h.Synced, Serve: h.Serve}}
		b.kernel.fail = func(sync int) error {
			if h.add("commit"); sync == 1 {
				return errors.New("refused")
			}
			return nil
		}
		name := b.set(1, 1)
		close(b.source.synced)
		synctest.Wait()
		lab.Same(t, []string{"node", "svc-1 true", "commit", "synced first=true err=refused"}, h.take(), "the first sync")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		lab.Same(t, []string{"commit", "synced first=true err=<nil>", "serve true"}, h.take()[:3], "the retry")
		time.Sleep(10 * time.Second)
		h.take()
		b.source.mu.Lock()
		delete(b.source.services, name)
		b.source.mu.Unlock()
		b.Tracker.MarkService(name)
		synctest.Wait()
		list := slices.DeleteFunc(h.take(), func(s string) bool { return s == "serve true" })
		lab.Same(t, []string{"svc-1 false", "commit", "synced first=false err=<nil>"}, list, "a change")
	})
}

// A listener that changes the plan gets a sync of its own. It does not compare the tables, as a sync without any change
// does.
func TestAListenerRequestsASync(t *testing.T) {
	run(t, func(b *bench) {
		b.set(1, 1)
		close(b.source.synced)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		_, before := b.kernel.held()
		doubts := b.kernel.doubts
		called := 0
		_, err := ask(context.Background(), b.Proxy, func() bool { b.Change(func() { called++ }); return true })
		lab.Must(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, after := b.kernel.held(); after != before+1 || b.kernel.doubts != doubts || called != 1 {
			t.Errorf("%d syncs, %d doubts and %d changes after the request, want one sync and one change",
				after-before, b.kernel.doubts-doubts, called)
		}
	})
}

// A command that watches follows the loop until it ends.
func TestAListenerFollowsForAWhile(t *testing.T) {
	run(t, func(b *bench) {
		h := &heard{}
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		lab.Must(t, b.Follow(ctx, beside.Listener{Service: h.Service, Synced: h.Synced})) // while the loop waits for objects
		b.set(1, 1)
		close(b.source.synced)
		time.Sleep(10 * time.Second)
		lab.Same(t, []string{"svc-1 true", "synced first=true err=<nil>"}, h.take(), "the first sync")
		leave()
		time.Sleep(time.Second)
		b.set(2, 1)
		time.Sleep(10 * time.Second)
		if list := h.take(); len(list) > 0 {
			t.Errorf("after the command has ended, its listener hears %v", list)
		}
	})
}

// A listener to some kinds of Services hears the first sync, and changes of Services that have or had the kind.
func TestAListenerToSomeServices(t *testing.T) {
	run(t, func(b *bench) {
		h := &heard{}
		serve := func(on bool) { h.add("serve %t", on) }
		b.Listeners = []beside.Listener{{Of: beside.HealthChecks, Service: h.Service, Synced: h.Synced, Serve: serve}}
		checked := func(s *corev1.Service) {
			s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		var failing atomic.Bool
		b.kernel.fail = func(int) error {
			if failing.Load() {
				return errors.New("refused")
			}
			return nil
		}
		b.set(1, 1)
		close(b.source.synced)
		time.Sleep(10 * time.Second)
		first := []string{"synced first=true err=<nil>", "serve true"}
		lab.Same(t, first, h.take()[:2], "the first sync")
		changes := func() []string {
			time.Sleep(10 * time.Second)
			periodic := true // the loop calls Serve twice a second
			return slices.DeleteFunc(h.take(), func(s string) bool {
				is := s == "serve true" && periodic
				periodic = s != "synced first=false err=<nil>"
				return is
			})
		}
		b.set(1, 2)
		lab.Same(t, []string{}, changes(), "a plain Service")
		synced := []string{"svc-1 true", "synced first=false err=<nil>", "serve true"}
		b.set(1, 2, checked)
		lab.Same(t, synced, changes(), "a Service with a health check")
		failing.Store(true)
		b.set(1, 3)
		time.Sleep(time.Millisecond)
		failing.Store(false)
		lab.Same(t, append([]string{"svc-1 true", "synced first=false err=refused"}, synced[1:]...), changes(),
			"the health check leaves, and the first sync fails")
		b.set(1, 4)
		lab.Same(t, []string{}, changes(), "the plain Service")
	})
}
