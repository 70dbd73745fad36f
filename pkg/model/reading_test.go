package model

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// storedSlice counts its calls of Read.
type storedSlice struct {
	slice *discoveryv1.EndpointSlice
	reads int
}

// Read reuses the memory of the object, as a store does.
func (s *storedSlice) Read(into *discoveryv1.EndpointSlice) bool {
	s.reads++
	if s.slice == nil {
		return false
	}
	endpoints, ports := append(into.Endpoints[:0], s.slice.Endpoints...), append(into.Ports[:0], s.slice.Ports...)
	*into = *s.slice
	into.Endpoints, into.Ports = endpoints, ports
	return true
}

// read puts a Service into scratch memory.
func read(svc *corev1.Service, into *Scratch) {
	ports := append(into.Service.Spec.Ports[:0], svc.Spec.Ports...)
	into.Service = *svc
	into.Service.Spec.Ports = ports
}

// randomSlice returns a slice with valid and invalid endpoints. The choice of endpoints is small, so that several slices have the
// same endpoint with different conditions. Sometimes it returns nil, which stands for an unreadable slice.
func randomSlice(r *rand.Rand, number, endpoints int) *discoveryv1.EndpointSlice {
	if r.IntN(50) == 0 {
		return nil
	}
	s := slice(fmt.Sprint("slice-", number))
	s.Ports = []discoveryv1.EndpointPort{endpointPort("web", corev1.ProtocolTCP, 8080+int32(r.IntN(10)/9)), endpointPort("dns", corev1.ProtocolUDP, 53)}
	if r.IntN(8) == 0 {
		s.Annotations = map[string]string{annotationCiliumWeight: fmt.Sprint(r.IntN(4)), annotationWeights: fmt.Sprintf("10.1.%d.1=%d", number, r.IntN(3))}
	}
	prefix := "10.1"
	if number%4 == 3 {
		s.AddressType, prefix = discoveryv1.AddressTypeIPv6, "fd01:"
	}
	for host := range endpoints {
		net := number
		switch r.IntN(200) {
		case 0: // an address that other slices have, too
			net = r.IntN(9)
		case 1: // an address that another endpoint has, too
			host = r.IntN(endpoints)
		}
		if r.IntN(2) == 0 {
			continue
		}
		ep := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{
			Ready: new(r.IntN(4) > 0), Serving: new(r.IntN(2) > 0), Terminating: new(r.IntN(5) == 0)}}
		switch s.AddressType {
		case discoveryv1.AddressTypeIPv6:
			ep.Addresses = []string{fmt.Sprintf("%s%d::%d", prefix, net, host)}
		default:
			ep.Addresses = []string{fmt.Sprintf("%s.%d.%d", prefix, net, host)}
		}
		if r.IntN(200) == 0 {
			ep.Addresses = []string{"not an address"}
		}
		if r.IntN(10) == 0 {
			ep.NodeName = &here.Name
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	return s
}

// Rebuild from the previous Reading equals Build from scratch, after any changes of a Service and its slices. With every second
// seed, the Service sometimes exceeds its limits.
func TestRebuildIsBuild(t *testing.T) {
	for seed := range uint64(6) {
		var opts Options
		if seed%2 == 1 {
			opts.Limits = Limits{Slices: 8, Pairs: 150, PortEndpoints: 60}
		}
		r := rand.New(rand.NewPCG(seed, 7))
		var stored []Slice
		var before *Reading
		var scratch Scratch
		var last, lastWanted *Service
		svc, node, now := dual(), here, time.Time{}
		slow := func(svc *corev1.Service) *corev1.Service {
			svc.Annotations = map[string]string{annotationSlowStart: "20"}
			return svc
		}
		for step := range 150 {
			switch op := r.IntN(10); {
			case op == 0 && len(stored) > 2:
				i := r.IntN(len(stored))
				stored = append(stored[:i:i], stored[i+1:]...)
			case op <= 2:
				stored = append(stored, &storedSlice{slice: randomSlice(r, len(stored), 40)})
			case op == 3 && r.IntN(4) == 0:
				node.Name = [...]string{here.Name, "another"}[r.IntN(2)]
			case op == 4 && r.IntN(4) == 0:
				svc = [...]*corev1.Service{dual(), service(), slow(dual()), slow(service())}[r.IntN(4)]
			case len(stored) > 0:
				i := r.IntN(len(stored))
				stored[i] = &storedSlice{slice: randomSlice(r, i, 40)}
			}
			var list []*discoveryv1.EndpointSlice
			for _, s := range stored {
				list = append(list, s.(*storedSlice).slice)
			}
			var got *Service
			read(svc, &scratch)
			if step > 20 {
				now = began.Add(time.Duration(step) * time.Second)
			}
			got, before = Rebuild(&scratch, before, stored, node, opts, now)
			opts.Starts = before.Starts()
			want := Build(svc, list, node, opts)
			if diff := cmp.Diff(want, got, exact); diff != "" {
				t.Fatalf("seed %d, step %d, %d slices (-Build +Rebuild):\n%s", seed, step, len(stored), diff)
			}
			if diff := cmp.Diff(lastWanted, last, exact); diff != "" {
				t.Fatalf("seed %d, step %d: Rebuild has changed the previous Service (-want +got):\n%s", seed, step, diff)
			}
			last, lastWanted = got, want
		}
	}
}

// Rebuild reads only changed slices, also if they have weights.
func TestRebuildReadsOnlyChangedSlices(t *testing.T) {
	var stored []Slice
	for i := range 10 {
		s := slice(fmt.Sprint("slice-", i), eps(fmt.Sprintf("%dr", i))...)
		s.Annotations = map[string]string{annotationWeights: fmt.Sprintf("10.1.0.%d=%d", i, i%3)}
		stored = append(stored, &storedSlice{slice: s})
	}
	scratch := Scratch{Service: *service()}
	_, before := Rebuild(&scratch, nil, stored, here, Options{}, time.Time{})
	changed := &storedSlice{slice: slice("slice-3", eps("99r")...)}
	kept := stored[3].(*storedSlice)
	stored[3] = changed
	got, _ := Rebuild(&scratch, before, stored, here, Options{}, time.Time{})
	if diff := cmp.Diff(list("1 2 4 5 7 8 99"), got.Ports[0].Cluster, exact); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	for i, s := range append(stored, kept) {
		if n := s.(*storedSlice).reads; n != 1 {
			t.Errorf("slice %d has been read %d times", i, n)
		}
	}
}

// If the Service exceeds the limit of pairs, a change reads the changed slice, and other slices only if they get more
// endpoints, or some of them.
func TestSlicesAboveTheLimitAreNotReadAgain(t *testing.T) {
	var stored []Slice
	for i := range 20 {
		stored = append(stored, &storedSlice{slice: slice(fmt.Sprintf("slice-%02d", i), eps(fmt.Sprintf("%dr %dr", 2*i, 2*i+1))...)})
	}
	scratch := Scratch{Service: *service()}
	opts := Options{Limits: Limits{Pairs: 8}}
	_, before := Rebuild(&scratch, nil, stored, here, opts, time.Time{})
	for _, s := range stored {
		s.(*storedSlice).reads = 0
	}
	stored[0] = &storedSlice{slice: slice("slice-00", eps("100r 101r 102r 103r 104r")...)}
	scratch.Service = *service()
	got, _ := Rebuild(&scratch, before, stored, here, opts, time.Time{})
	if diff := cmp.Diff(list("2 3 4 100 101 102 103 104"), got.Ports[0].Cluster, exact); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	var reads []int
	for _, s := range stored[:6] {
		reads = append(reads, s.(*storedSlice).reads)
	}
	if diff := cmp.Diff([]int{1, 0, 1, 0, 0, 0}, reads); diff != "" {
		t.Errorf("reads of slices (-want +got):\n%s", diff)
	}
}
