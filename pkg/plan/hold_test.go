package plan

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// sleepers are a planner with Services that scale to zero.
type sleepers struct {
	*testing.T
	*Planner
	holds map[Number]types.NamespacedName
}

func newSleepers(t *testing.T) *sleepers {
	o := testOptions()
	o.Families = inet.Families[:1]
	return &sleepers{t, New(o), map[Number]types.NamespacedName{}}
}

// set plans a Service, with an endpoint or without.
func (s *sleepers) set(namespace string, i, endpoints int) types.NamespacedName {
	svc := benchService(i, endpoints, 0)
	svc.Name.Namespace, svc.ScaleToZero, svc.Ports[0].HasEndpoints = namespace, true, endpoints > 0
	svc.Ports[0].Name.Namespace = namespace
	s.Set(svc.Name, svc)
	return svc.Name
}

// check compares the class of a Service's frontend, and the Services that hold packets.
func (s *sleepers) check(i int, want kind, name types.NamespacedName) {
	s.Helper()
	var w wants
	p := s.services[name].ports[0]
	s.frontendElements(claim{s.services[name], p, &p.Frontends[0]}, &w)
	got := kindOf(w.own[len(w.own)-1].Data.AsUint32())
	for port, name := range s.TakeOwners(Holding) {
		if s.holds[port] = name; name == (types.NamespacedName{}) {
			delete(s.holds, port)
		}
	}
	if holder := s.holds[Number{inet.IPv4, p.number}] == name; got != want || holder != (want == kindHold) {
		s.Errorf("Service %d has kind %d, want %d; it is a holder: %v", i, got, want, holder)
	}
	if left := s.Service(name).Excess(); (len(left) > 0) != (want == kindReject) || len(left) > 0 && (left[0].Field != model.ScaleToZeroField || !strings.Contains(left[0].Reason, "refuses connections")) {
		s.Errorf("parts of Service %d that are left out: %v", i, left)
	}
}

// TestHoldersAreBounded: Services of a namespace above its share refuse connections. They hold packets after other
// Services have got endpoints.
func TestHoldersAreBounded(t *testing.T) {
	s := newSleepers(t)
	share := s.rooms[ofHolders.in(0)].Most()
	for i := range share {
		s.check(i, kindHold, s.set("a", i, 0))
	}
	first, last := s.set("a", 0, 0), s.set("a", share, 0)
	s.check(0, kindHold, first)
	s.check(share, kindReject, last)
	s.check(share+1, kindHold, s.set("b", share+1, 0))
	s.check(0, kindDirect, s.set("a", 0, 2))
	if again := s.TakeWaiting(9); len(again) != 1 || again[0] != last {
		t.Fatalf("Services with room: %v, want %v", again, last)
	}
	s.check(share, kindHold, s.set("a", share, 0))
	s.check(0, kindReject, s.set("a", 0, 0))
	s.Set(last, nil)
	s.check(0, kindHold, s.set("a", 0, 0))
}
