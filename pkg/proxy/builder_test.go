package proxy

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// slowly gives a Service slow start.
func slowly(seconds int) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		metav1.SetMetaDataAnnotation(&svc.ObjectMeta, "kube-nftproxy.io/slow-start", fmt.Sprint(seconds))
	}
}

// slots returns the number of slots of an endpoint in the kernel.
func (b *bench) slots(endpoint string) (n int) {
	list, _ := b.kernel.held()
	for _, e := range list {
		if strings.Contains(e, " endpoints { ") && strings.Contains(e, " "+endpoint+" . ") {
			n++
		}
	}
	return n
}

// countBuilds returns the number of Services that are built from now on.
func (b *bench) countBuilds() *atomic.Int32 {
	var builds atomic.Int32
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	b.source.built = func(types.NamespacedName) { builds.Add(1) }
	return &builds
}

// await waits until all due work is done.
func await(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// The slots of a new endpoint rise from one to ten. Those of all other endpoints stay, and afterwards there is no
// further step.
func TestStepsOfANewEndpoint(t *testing.T) {
	run(t, func(b *bench) {
		const seconds = 93
		b.set(1, 2, slowly(seconds))
		close(b.source.synced)
		await(10 * time.Second)
		b.set(1, 3, slowly(seconds))
		await(time.Millisecond)
		for want := 1; want <= 10; want++ {
			if one, new := b.slots("10.244.1.1"), b.slots("10.244.1.3"); one != 10 || new != want {
				t.Errorf("step %d: %d slots of an old endpoint, %d of the new one, want 10 and %[1]d", want, one, new)
			}
			b.check(t)
			await(seconds * time.Second / 9)
		}
		builds := b.countBuilds()
		await(time.Hour)
		if n := builds.Load(); n > 0 {
			t.Errorf("%d builds after the last step", n)
		}
	})
}

// After a restart, all endpoints have their full weight, and endpoints that are new then start, even if the Service
// is young.
func TestRestartDuringSlowStart(t *testing.T) {
	run(t, func(b *bench) {
		now := func(svc *corev1.Service) { svc.CreationTimestamp = metav1.Now() }
		b.set(1, 3, slowly(90), now)
		close(b.source.synced)
		await(time.Second)
		lab.Same(t, 10, b.slots("10.244.1.3"), "slots of an endpoint that is known at the start")
		b.set(1, 4, slowly(90), now)
		await(time.Second)
		lab.Same(t, 1, b.slots("10.244.1.4"), "slots of an endpoint that is new after the start")
	})
}

// Steps of many Services whose endpoints start at different times share their syncs: at most one each second.
func TestStepsOfManyServicesShareSyncs(t *testing.T) {
	run(t, func(b *bench) {
		const services, seconds = 100, 9
		b.Schedule = NewSchedule(0, 30*time.Second, 30*time.Second) // no minimum interval between syncs
		for i := range services {
			b.set(i, 2, slowly(seconds))
		}
		close(b.source.synced)
		await(10 * time.Second)
		for i := range services {
			b.set(i, 3, slowly(seconds))
			time.Sleep(3 * time.Millisecond)
		}
		await(2 * time.Second)
		_, before := b.kernel.held()
		await((seconds + 1) * time.Second)
		if _, after := b.kernel.held(); after-before > seconds+1 {
			t.Errorf("%d syncs within %d seconds", after-before, seconds+1)
		}
		for i := range services {
			if n := b.slots(fmt.Sprintf("10.244.%d.3", i)); n != 10 {
				t.Errorf("Service %d: %d slots of the new endpoint after slow start, want 10", i, n)
			}
		}
		b.check(t)
	})
}

// The endpoints of a tenant flap: the loop builds their Service once for each change that it takes, and at most once
// more each second.
func TestFlappingEndpointsCostOneStepEachSecond(t *testing.T) {
	run(t, func(b *bench) {
		b.set(1, 3000, slowly(3600))
		close(b.source.synced)
		await(10 * time.Second)
		builds := b.countBuilds()
		const changes = 60
		for i := range changes {
			b.set(1, 1000+i%2*2000, slowly(60))
			await(2 * time.Second)
		}
		flapping := builds.Load()
		if most := int32(changes + 2*changes); flapping > most || flapping < changes {
			t.Errorf("%d builds for %d changes in %d seconds, want at most %d", flapping, changes, 2*changes, most)
		}
		await(2 * time.Minute)
		if steps := builds.Load() - flapping; steps > 10 {
			t.Errorf("%d builds after the last change, want at most the nine steps", steps)
		}
		b.check(t)
	})
}

// A deleted Service has no steps.
func TestStepsOfADeletedService(t *testing.T) {
	run(t, func(b *bench) {
		name := b.set(1, 2, slowly(90))
		close(b.source.synced)
		await(10 * time.Second)
		b.set(1, 3, slowly(90))
		await(time.Second)
		b.source.mu.Lock()
		delete(b.source.services, name)
		delete(b.source.slices, name)
		b.source.mu.Unlock()
		b.Tracker.MarkService(name)
		await(2 * time.Second)
		builds := b.countBuilds()
		await(time.Hour)
		if n := builds.Load(); n > 0 {
			t.Errorf("%d builds after the Service was deleted", n)
		}
	})
}
